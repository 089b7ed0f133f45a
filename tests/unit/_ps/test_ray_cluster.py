"""Members as actors of a real Ray with two nodes, one of which has GPUs by name only."""

import logging
import signal
import socket
import time
from contextlib import contextmanager
from pathlib import Path

import keras
import numpy as np
import pytest
from rays import ray_cluster

import replicax as rx
from replicax._processes.ray_connection import connect
from replicax._ps.hosts.cluster import SERVER, WORKER, Members
from replicax._ps.hosts.ray_cluster import RayCluster

import members
from helpers import wait_until
from members import about
from processes import is_running

pytestmark = [
    pytest.mark.timeout(500),
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="it looks at processes"),
]

TINY = "tiny_member:start_member"


@contextmanager
def warned():
    texts = []
    handler = logging.Handler()
    handler.emit = lambda record: texts.append(record.getMessage())
    logging.getLogger("replicax").addHandler(handler)
    yield texts
    logging.getLogger("replicax").removeHandler(handler)


@pytest.fixture(scope="module")
def ray():
    """A Ray with what the tests need, and no more."""
    nodes = {"num_cpus": 5}, {"num_cpus": 3, "num_gpus": 2}
    with ray_cluster(*nodes) as started:
        yield started


def test_a_ray_without_token_is_warned_about_and_sigterm_stays_ours(monkeypatch):
    import ray

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **_: signal.signal(signal.SIGTERM, signal.SIG_IGN))
    with warned() as texts:
        connect("auto")
    assert any("asks for no token" in text for text in texts)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_strategy_trains_on_ray_with_the_resources_that_it_names(ray):
    asked = {"worker": {"GPU": 1}, "ps": {}}
    strategy = rx.ParameterServerStrategy(
        address=ray.address, num_workers=2, num_ps=1, resources=asked
    )
    try:
        with strategy.scope():
            model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        x = np.random.default_rng(0).normal(size=(64, 2)).astype("float32")
        history = model.fit(x, x.sum(1, keepdims=True), epochs=3, batch_size=8, verbose=0)
        assert history.history["loss"][-1] < history.history["loss"][0]
        assert repr(strategy).endswith(f"on the Ray cluster {ray.address}>")
    finally:
        strategy.close()


@pytest.fixture(scope="module")
def cluster(ray):
    """One server, and two workers with a GPU each."""
    server = Members(1, {"OWN": "the server's", "JAX_PLATFORMS": "cpu"})
    workers = Members(2, {"JAX_PLATFORMS": "cpu"}, resources={"CPU": 1, "GPU": 1})
    cluster = RayCluster(ray.address, server, workers, starter=TINY)
    yield cluster
    process = about(cluster, SERVER, 0)["process"]
    cluster.close()
    cluster.close()
    wait_until(lambda: not is_running(process))
    with pytest.raises(rx.errors.UnavailableError, match="has been closed"):
        cluster.member(SERVER, 0, after=5)


def test_members_are_there_and_know_the_secret(cluster):
    members.check_that_members_are_there_and_know_the_secret(cluster)


def test_members_have_the_environment_and_the_gpus_that_were_given(cluster):
    assert about(cluster, SERVER, 0, "given")["variables"]["OWN"] == "the server's"
    seen = [about(cluster, WORKER, index, "given")["variables"] for index in (0, 1)]
    assert {one["CUDA_VISIBLE_DEVICES"] for one in seen} == {"0", "1"}


def test_a_member_that_is_killed_comes_back(cluster):
    members.check_that_a_killed_member_comes_back(cluster)


def test_a_member_that_stands_still_comes_back_when_it_is_killed(cluster):
    members.check_that_one_that_stands_still_comes_back_when_it_is_killed(cluster)


def test_who_asks_for_more_than_there_is_is_told_what_there_is(cluster):
    assert cluster.add_worker() == 2
    with (
        warned() as texts,
        pytest.raises(rx.errors.UnavailableError, match=r"asked for .*1 GPU.* 0 of 2 GPU"),
    ):
        cluster.member(WORKER, 2, timeout=12)
    assert any("Waiting for worker 2" in text for text in texts)


def test_one_that_cannot_start_says_why_and_the_others_are_there(cluster, ray):
    other = RayCluster(ray.address, Members(1), Members(1, {"TINY_FAILS": "worker"}), starter=TINY)
    try:
        assert about(other, SERVER, 0)["role"] == SERVER
        with pytest.raises(rx.errors.UnavailableError, match="(?s)worker 0 .*has no disk"):
            other.member(WORKER, 0)
        assert other.add_worker() == 1
    finally:
        other.close()
    assert about(cluster, SERVER, 0)["role"] == SERVER


def test_a_ray_that_is_not_there_is_told_at_once(monkeypatch):
    import ray

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with socket.create_server(("127.0.0.1", 0)) as held:
        address = f"127.0.0.1:{held.getsockname()[1]}"
    began = time.monotonic()
    with pytest.raises(rx.errors.ClusterError, match="Connection refused"):
        RayCluster(address, Members(1), Members(0), starter=TINY)
    assert time.monotonic() - began < 20
