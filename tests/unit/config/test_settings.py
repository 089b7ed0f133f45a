"""The tuning for CPUs changes no result; joining a cluster by its description."""

import socket

import keras
import numpy as np
import pytest

import replicax as rx
from replicax._core.env import cpu_tuning_parts
from replicax._cpu.tuning import PARTS, parts_on
from replicax.cluster_resolver import ClusterSpec, TPUClusterResolver


def test_all_is_on_unless_the_environment_says_otherwise(monkeypatch):
    monkeypatch.delenv("RX_CPU_TUNING", raising=False)
    assert parts_on() == PARTS
    monkeypatch.setenv("RX_CPU_TUNING", " 1 ")
    assert parts_on() == PARTS
    monkeypatch.setenv("RX_CPU_TUNING", "0")
    assert parts_on() == set()
    monkeypatch.setenv("RX_CPU_TUNING", "memory, threads")
    assert parts_on() == {"memory", "threads"}


def test_a_part_that_there_is_not():
    with pytest.raises(rx.errors.UsageError, match="pooling.*'pools'"):
        cpu_tuning_parts({"RX_CPU_TUNING": "pools"})


def test_the_switch_comes_before_the_environment_and_goes_back_after_a_block(monkeypatch):
    monkeypatch.setenv("RX_CPU_TUNING", "memory")
    with rx.config.cpu_tuning(False):
        assert parts_on() == set()
        with rx.config.cpu_tuning(True):
            assert parts_on() == PARTS
        assert parts_on() == set()
    assert parts_on() == {"memory"}
    monkeypatch.setenv("RX_CPU_TUNING", "pooling")
    assert parts_on() == {"pooling"}


def test_the_switch_stays_without_a_block():
    before = rx.config.cpu_tuning(False)
    assert not parts_on()
    before.__exit__(None, None, None)
    assert parts_on() == PARTS


def weights_after_training(devices):
    """Of a small convolutional network with overlapping windows, after five steps."""
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    x = rng.integers(0, 4, (30, 10, 10, 2)).astype("float32")
    with rx.MirroredStrategy([f"CPU:{number}" for number in range(devices)]).scope():
        model = keras.Sequential(
            [
                keras.layers.Conv2D(4, 3, padding="same", activation="relu"),
                keras.layers.MaxPooling2D(3, 2, padding="same"),
                keras.layers.Conv2D(4, 3),
                keras.layers.AveragePooling2D(2),
                keras.layers.Flatten(),
                keras.layers.Dense(3),
            ]
        )
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(x, rng.integers(0, 3, 30), batch_size=6, verbose=0, shuffle=False)
    return np.concatenate([weight.ravel() for weight in model.get_weights()])


@pytest.mark.parametrize("devices", [1, 2, 3])
def test_training_gives_the_same_with_and_without(devices):
    with rx.config.cpu_tuning(False):
        stock = weights_after_training(devices)
    np.testing.assert_allclose(weights_after_training(devices), stock, rtol=1e-4, atol=1e-6)


@pytest.fixture
def joined(monkeypatch):
    """The resolvers that were to be joined."""
    found = []
    monkeypatch.setattr(
        "replicax.config._settings.start", lambda resolver, _: found.append(resolver)
    )
    return found


def test_a_resolver_is_joined(joined):
    resolver = TPUClusterResolver(fallback="cpu")
    rx.config.experimental_connect_to_cluster(resolver)
    assert joined == [resolver]


def test_a_cluster_with_a_task_is_joined(joined):
    rx.config.experimental_connect_to_cluster(ClusterSpec({"worker": ["a:1", "b:1"]}), "worker", 1)
    assert joined[0].jax_process() == ("a:1", 2, 1)


def test_parameter_servers_are_connected_to_by_their_strategy(joined):
    spec = ClusterSpec({"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1"]})
    rx.config.experimental_connect_to_cluster(spec, "chief", 0)
    assert joined == []


def test_this_machine_among_hosts(joined):
    here = f"{socket.gethostname()}:1"
    rx.config.experimental_connect_to_host(["grpc://a:1", here])
    assert joined[0].jax_process() == ("a:1", 2, 1)


@pytest.mark.parametrize("hosts", [None, [], "elsewhere:1", ["localhost:1", "localhost:2"]])
def test_this_machine_is_one_of_the_hosts(hosts):
    with pytest.raises(rx.errors.ClusterSpecError, match="of the hosts .* are this machine"):
        rx.config.experimental_connect_to_host(hosts)


def test_one_host_is_alone():
    rx.config.experimental_connect_to_host("localhost:2222")
