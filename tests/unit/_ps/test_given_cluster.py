"""Members at given addresses, whose processes somebody else starts: here, the tests."""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import keras
import pytest

import replicax as rx
from replicax._net import Refused, at_place
from replicax._ps.hosts import contact, given_cluster
from replicax._ps.hosts.cluster import SERVER, WORKER, at_of, place_of
from replicax._ps.hosts.contact import Presence, ask_about, beginning_of
from replicax._ps.hosts.given_cluster import GivenCluster
from replicax._ps.hosts.member import start_member
from replicax.cluster_resolver import ClusterSpec, SimpleClusterResolver
from replicax.launch._ports import free_ports

import tiny_member
from helpers import begun_threads, wait_until

SECRET = b"thirty-two bytes, as all others."


@pytest.fixture
def spec():
    """One ps and one worker, on free ports."""
    with free_ports(2) as ports:
        ps, worker = (f"127.0.0.1:{port}" for port in ports)
        yield ClusterSpec({"ps": [ps], "worker": [worker], "chief": ["127.0.0.1:1"]})


@pytest.fixture
def start(spec):
    """Start a member of the cluster, in this process."""
    started = []

    def start(role, job=None, secret=SECRET, cluster=spec):
        port = int(spec.task_address(job or role, 0).rpartition(":")[2])
        at = at_of(cluster, WORKER if job == "worker" else role, 0)
        started.append(tiny_member.start_member(role, 0, secret, port=port, at=at))
        return started[-1]

    yield start
    for endpoint in started:
        endpoint.close()


@pytest.fixture
def cluster(spec):
    return GivenCluster(spec, SECRET)


def test_it_has_the_members_of_its_description(cluster):
    assert (cluster.num_servers, cluster.num_workers) == (1, 1)
    assert cluster.secret == SECRET


def test_it_says_where_its_members_are_each_host_once():
    spec = ClusterSpec({"ps": ["[::1]:1"], "worker": ["a:1", "b:1", "a:2"], "chief": ["c:1"]})
    assert GivenCluster(spec, SECRET).where == "on ::1, a, b"


def test_a_member_is_found_where_the_description_says(cluster, start, spec):
    endpoint = start(WORKER)
    found = cluster.member(WORKER, 0)
    at = spec.task_address("worker", 0)
    assert found.addresses[-1] == f"tcp://{at}#/job:worker/task:0@{at_of(spec, WORKER, 0)}"
    assert set(found.addresses) == set(endpoint.addresses)
    assert found.incarnation == 0
    assert cluster.member(WORKER, 0) == found


def test_a_member_is_waited_for(cluster, start):
    timer = threading.Timer(0.3, start, [SERVER, "ps"])
    timer.start()
    assert cluster.member(SERVER, 0, timeout=30).incarnation == 0
    timer.join()


def test_who_waits_long_is_told_for_whom(cluster, start, monkeypatch, caplog):
    monkeypatch.setattr(given_cluster, "_SECONDS_OF_SILENCE", 0.0)
    with pytest.raises(
        rx.errors.UnavailableError,
        match=r"No worker 0 at 127\.0\.0\.1:\d+ within 0.01 seconds\. Start the same program",
    ) as caught:
        cluster.member(WORKER, 0, timeout=0.01)
    assert caught.value.task == "/job:worker/task:0"
    assert caplog.text.count("Waiting for worker 0 at 127.0.0.1:") == 1


def test_a_member_is_no_newer_for_being_asked_again(cluster, start):
    start(WORKER)
    assert cluster.member(WORKER, 0).incarnation == 0
    with pytest.raises(rx.errors.UnavailableError, match="No new worker 0 at"):
        cluster.member(WORKER, 0, after=0, timeout=0.2)


def test_the_next_process_counts_as_the_next_incarnation(cluster, start):
    endpoint = start(WORKER)
    assert cluster.member(WORKER, 0).incarnation == 0
    endpoint.close()
    start(WORKER)
    assert cluster.member(WORKER, 0, after=0, timeout=30).incarnation == 1


def test_a_member_with_another_secret_is_told_at_once(cluster, start):
    start(WORKER, secret=b"another secret of 32 bytes......")
    with pytest.raises(Refused, match="another secret"):
        cluster.member(WORKER, 0)


def test_a_member_that_takes_itself_for_another_is_refused(cluster, start):
    start(SERVER, job="worker")
    with pytest.raises(Refused, match="/job:worker/task:0@.* was looked for, and /job:ps/task:0@"):
        cluster.member(WORKER, 0)


def test_who_does_not_answer_a_goodbye_is_named(cluster, start, spec, caplog):
    endpoint = start(SERVER, "ps")
    port = int(spec.task_address("worker", 0).rpartition(":")[2])
    with socket.create_server(("127.0.0.1", port)):  # as a process that stands still
        began = time.monotonic()
        cluster.close()
    assert time.monotonic() - began < 8
    endpoint.wait()
    (said,) = (one.getMessage() for one in caplog.records if one.levelno >= logging.WARNING)
    assert "worker 0" in said and "ps 0" not in said


def test_a_member_of_another_job_with_the_same_secret_is_refused(cluster, start, spec, caplog):
    """The worker's address is the same, as where a name leads to different machines."""
    start(WORKER, cluster=ClusterSpec({**spec.as_dict(), "ps": ["127.0.0.1:2"]}))
    with pytest.raises(Refused, match="another job") as caught:
        cluster.member(WORKER, 0, timeout=30)
    wait_until(lambda: caplog.records)
    for told in (str(caught.value), caplog.text):
        assert "127.0.0.1:2;" in told
        assert spec.task_address("ps", 0) in told


def test_who_coordinates_may_describe_himself_or_not(start, spec):
    without_chief = ClusterSpec({job: spec.as_dict()[job] for job in ("ps", "worker")})
    start(WORKER, cluster=without_chief)
    assert GivenCluster(spec, SECRET).member(WORKER, 0, timeout=30).incarnation == 0


def test_goodbye_reaches_all_who_answer(cluster, start):
    endpoint = start(WORKER)
    cluster.close()
    endpoint.wait()


def test_a_worker_cannot_be_added(cluster):
    with pytest.raises(rx.errors.UsageError, match="Cannot add a worker"):
        cluster.add_worker()


@pytest.mark.parametrize(
    ("jobs", "complaint"),
    [
        ({"worker": ["a:1"]}, "at least one ps"),
        ({"ps": ["a:1"]}, "at least one worker"),
        ({"ps": ["a:1"], "worker": []}, "at least one worker"),
        ({"ps": ["a:1"], "master": ["b:1"]}, "Disallowed task type found in the cluster"),
        ({"ps": ["a:1"], "worker": ["b:1"], "chief": ["c:1", "d:1"]}, "at most one 'chief'"),
        ({"ps": ["a:1"], "worker": {1: "b:1"}}, "address of 'worker'"),
    ],
)
def test_other_clusters_are_refused(jobs, complaint):
    with pytest.raises(rx.errors.ClusterSpecError, match=complaint):
        GivenCluster.described(SimpleClusterResolver(jobs))


def test_a_described_cluster_has_the_secret_of_the_environment(spec, monkeypatch):
    monkeypatch.setenv("RX_CLUSTER_SECRET", SECRET.decode())
    resolver = SimpleClusterResolver(spec, task_type="chief", task_id=0)
    assert GivenCluster.described(resolver).secret == SECRET


MEMBER = f"""
import sys
sys.path[:0] = {sys.path!r}
import tiny_member
port, at = int(sys.argv[1]), sys.argv[2]
tiny_member.start_member("worker", 0, {SECRET!r}, port=port, at=at).wait()
"""


@pytest.fixture
def process(spec):
    """The worker, in a process of its own."""
    port, at = spec.task_address("worker", 0).rpartition(":")[2], at_of(spec, WORKER, 0)
    with subprocess.Popen([sys.executable, "-c", MEMBER, port, at]) as process:
        yield process
        process.kill()


@pytest.mark.skipif(not beginning_of(os.getpid()), reason="a process is known by /proc")
def test_a_process_that_stands_still_is_killed_if_it_is_here(cluster, process):
    cluster.member(WORKER, 0, timeout=60)
    process.send_signal(signal.SIGSTOP)
    cluster.kill(WORKER, 0)
    assert process.wait(30) == -signal.SIGKILL


def test_a_process_elsewhere_is_given_up_and_new_when_it_answers(cluster, start, monkeypatch):
    monkeypatch.setattr(given_cluster, "is_loopback", lambda host: False)
    start(WORKER)
    assert cluster.member(WORKER, 0).incarnation == 0
    cluster.kill(WORKER, 0)
    assert cluster.member(WORKER, 0, after=0, timeout=30).incarnation == 1
    assert cluster.member(WORKER, 0).incarnation == 1


def test_one_that_was_never_there_cannot_be_killed(cluster, start):
    cluster.kill(WORKER, 0)
    start(WORKER)
    assert cluster.member(WORKER, 0).incarnation == 0


def test_a_process_is_killed_only_if_it_is_still_the_same():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        about = contact.About(WORKER, 0, "life", (), other.pid, "1")
        assert not contact.kill(about)
        assert not contact.kill(about._replace(began=""))
        assert other.poll() is None
        other.communicate(b"\n")
    wait_until(lambda: not beginning_of(other.pid))
    assert not contact.kill(about)


def test_who_connects_and_gets_no_answer_does_not_wait_for_ever(start, spec, monkeypatch):
    never = threading.Event()
    monkeypatch.setattr(Presence, "answer", lambda *_: never.wait(60) and {})
    start(WORKER)
    with pytest.raises(rx.errors.ClusterError, match="no answer in time"):
        at = spec.task_address("worker", 0)
        place = place_of(WORKER, 0, at_of(spec, WORKER, 0))
        ask_about(at_place(f"tcp://{at}", place), SECRET, timeout=0.2)
    never.set()


def test_a_strategy_waits_for_as_long_as_its_cluster_does(spec, monkeypatch):
    monkeypatch.setattr(given_cluster, "_PATIENCE", 0.2)
    monkeypatch.setenv("RX_CLUSTER_SECRET", SECRET.decode())
    with pytest.raises(rx.errors.UnavailableError, match=r"No ps 0 at .* within 0\.2 seconds"):
        rx.ParameterServerStrategy(SimpleClusterResolver(spec, task_type="chief", task_id=0))


@pytest.mark.parametrize("who", ["worker", "ps"])
def test_a_strategy_closes_in_seconds_though_a_member_has_vanished(spec, monkeypatch, who):
    """Its address accepts connections and never answers, as a machine without power."""
    monkeypatch.setenv("RX_CLUSTER_SECRET", SECRET.decode())
    ports = {job: int(spec.task_address(job, 0).rpartition(":")[2]) for job in ("ps", "worker")}
    members = {
        job: start_member(role, 0, SECRET, port=ports[job], at=at_of(spec, role, 0))
        for job, role in (("ps", SERVER), ("worker", WORKER))
    }
    strategy = rx.ParameterServerStrategy(SimpleClusterResolver(spec, task_type="chief", task_id=0))
    coordinator = rx.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        variable = keras.Variable(0.0)
    step = rx.function(lambda: variable.assign_add(1.0))
    coordinator.schedule(step)
    coordinator.join()
    members[who].close()
    with socket.create_server(("127.0.0.1", ports[who])) as silent:
        silent.settimeout(30)
        coordinator.schedule(step)
        silent.accept()[0].close()  # somebody looks for it
        began = time.monotonic()
        strategy.close()
        assert time.monotonic() - began < 8
        wait_until(lambda: not begun_threads("replicax-lane"))
    for member in members.values():
        member.close()
