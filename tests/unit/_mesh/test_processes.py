"""Joining a cluster: who takes part, and what is said when it cannot be."""

import os
import signal
import socket
import sys
import textwrap
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import jax
import pytest

from replicax._control import EXIT_CODE, Limits, open_channel
from replicax._core.channel import current
from replicax._core.errors import ClusterError, ClusterSpecError
from replicax._core.options import CommunicationImplementation, CommunicationOptions
from replicax._mesh import processes
from replicax._mesh.processes import join, join_from_environment, secret_of, start
from replicax.cluster_resolver import ClusterSpec, JaxProcess, SimpleClusterResolver
from replicax.launch._ports import free_ports

from helpers import start_program

SPEC = ClusterSpec(
    {"chief": ["a:1"], "worker": ["b:1", "c:1"], "ps": ["d:1"], "evaluator": ["e:1"]}
)


@pytest.mark.parametrize(
    ("job", "index", "process"),
    [
        ("chief", 0, ("a:1", 3, 0)),
        ("worker", 0, ("a:1", 3, 1)),
        ("worker", 1, ("a:1", 3, 2)),
        ("ps", 0, None),
        ("evaluator", 0, None),
    ],
)
def test_chief_and_workers_train_together(job, index, process):
    assert SimpleClusterResolver(SPEC, task_type=job, task_id=index).jax_process() == process


def test_without_a_cluster_nobody_trains_together():
    assert SimpleClusterResolver(ClusterSpec({})).jax_process() is None
    assert start(None, CommunicationOptions()) is False


def test_one_process_has_nothing_to_join(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"worker": ["a:1"]}}')
    monkeypatch.setattr(jax.distributed, "initialize", None)
    join(JaxProcess("a:1", 1, 0))
    monkeypatch.delenv("TF_CONFIG")
    join_from_environment()
    assert current().size == 1


@pytest.fixture
def no_secret(monkeypatch, tmp_path):
    for name in ("RX_CLUSTER_SECRET", "RX_CLUSTER_SECRET_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


@pytest.mark.parametrize(("index", "warnings"), [(0, 1), (1, 0)])
def test_the_chief_warns_once_of_a_cluster_without_a_secret(no_secret, caplog, index, warnings):
    assert secret_of(JaxProcess("192.0.2.1:1", 2, index)) is None
    assert len(caplog.records) == warnings


def test_a_cluster_on_this_machine_has_the_secret_of_its_user(no_secret, caplog):
    found = {secret_of(JaxProcess("localhost:1", 2, index)) for index in range(2)}
    assert len(found) == 1 and None not in found
    assert not caplog.text


def test_a_cluster_on_this_machine_works_where_no_file_can_be(no_secret, monkeypatch, caplog):
    monkeypatch.setenv("XDG_STATE_HOME", "/dev/null")
    assert secret_of(JaxProcess("localhost:1", 2, 0)) is None
    assert "RX_CLUSTER_SECRET" in caplog.text


def test_the_workers_of_parameter_servers_do_not_join(monkeypatch):
    cluster = '{"worker": ["a:1", "b:1"], "ps": ["c:1"]}'
    task = '{"type": "worker", "index": 1}'
    monkeypatch.setenv("TF_CONFIG", f'{{"cluster": {cluster}, "task": {task}}}')
    monkeypatch.setattr(jax.distributed, "initialize", None)
    join_from_environment()
    assert current().size == 1


def test_nccl_without_gpus_is_a_warning(caplog):
    assert not start(None, CommunicationOptions(implementation=CommunicationImplementation.NCCL))
    assert "devices here are of kind cpu" in caplog.text


def test_ring_is_what_nccl_is_told(monkeypatch):
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    monkeypatch.delenv("NCCL_ALGO")
    start(None, CommunicationOptions(implementation=CommunicationImplementation.RING))
    assert os.environ["NCCL_ALGO"] == "Ring"


def test_a_process_joins_one_cluster(monkeypatch):
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    with pytest.raises(ClusterError, match="Worker 1 of 2 has joined another cluster"):
        join(JaxProcess("127.0.0.1:1", 2, 1))


def test_the_two_ports_of_a_chief_differ(monkeypatch):
    monkeypatch.setenv("RX_SECOND_PORT", "2222")
    with pytest.raises(ClusterSpecError, match="RX_SECOND_PORT=2222"):
        join(JaxProcess("127.0.0.1:2222", 2, 0))


def test_an_interrupt_while_joining_frees_the_chief_s_port(monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(processes, "_join_jax", interrupt)
    with free_ports(1) as (port,), ThreadPoolExecutor(1) as pool:
        chief = JaxProcess(f"127.0.0.1:{port}", 2, 0)
        other = pool.submit(
            open_channel,
            1,
            2,
            chief.coordinator_address,
            limits=Limits(joining=30.0, ending=0.0),
            secret=secret_of(chief),
            on_failure=lambda lost: None,
        )
        with pytest.raises(KeyboardInterrupt):
            join(chief, 30.0)
        other.result(40).close()
        socket.create_server(("127.0.0.1", port)).close()


START = """
import pathlib, sys, time
import jax
import replicax as rx
from replicax.cluster_resolver import ClusterSpec, SimpleClusterResolver

index, size, together, address, seconds = sys.argv[1:]
index, size = int(index), int(size)
pathlib.Path(f"imported{index}").touch()
while len(list(pathlib.Path().glob("imported*"))) < int(together):
    time.sleep(0.01)
spec = ClusterSpec({"worker": [address] + [f"127.0.0.1:{i}" for i in range(1, size)]})
resolver = SimpleClusterResolver(spec, task_type="worker", task_id=index)
options = rx.experimental.CommunicationOptions(timeout_seconds=float(seconds))
"""


@pytest.fixture
def cluster(tmp_path, address):
    """Run some workers of a cluster; give for each its exit code and what it has said."""
    started = []

    def run(program, indices, size, *, seconds=60.0):
        environ = {**os.environ, "JAX_NUM_CPU_DEVICES": "1"}
        for index in indices:
            arguments = map(str, (index, size, len(indices), address, seconds))
            with open(tmp_path / f"said{index}", "wb") as said:
                code = START + textwrap.dedent(program)
                command = [sys.executable, "-c", code, *arguments]
                how = {"stdout": said, "stderr": said}
                process = start_program(command, cwd=tmp_path, env=environ, **how)
            started.append(process)
        codes = [process.wait(100) for process in started]
        return [
            (code, (tmp_path / f"said{index}").read_text())
            for code, index in zip(codes, indices, strict=True)
        ]

    yield run
    for process in started:
        process.kill()
        process.wait()


def test_all_say_which_worker_never_started(cluster):
    ended = cluster("rx.MultiWorkerMirroredStrategy(resolver, options)", [0, 1], 3, seconds=6)
    for (code, said), whose in zip(ended, ("The chief", "Worker 1"), strict=True):
        assert code == 1
        assert "ClusterError: " in said
        assert "nothing from worker 2" in said
        assert whose in said


def test_all_say_which_worker_died_before_it_joined_jax(cluster):
    program = """
    import os, signal
    from replicax._mesh import processes
    if index == 1:
        processes._join_jax = lambda *args: os.kill(os.getpid(), signal.SIGKILL)
    rx.MultiWorkerMirroredStrategy(resolver, options)
    """
    began = time.monotonic()
    chief, killed, other = cluster(program, [0, 1, 2], 3)
    assert time.monotonic() - began < 40
    assert killed[0] == -signal.SIGKILL
    for code, said in (chief, other):
        assert code == EXIT_CODE
        assert "worker 1 died" in said


def test_a_program_may_join_jax_itself(cluster):
    program = """
    jax.distributed.initialize(address, size, index)
    strategy = rx.MultiWorkerMirroredStrategy(resolver, options)
    print("replicas", strategy.num_replicas_in_sync)
    """
    ended = cluster(program, [0, 1], 2)
    assert [code for code, _ in ended] == [0, 0], ended
    assert all("replicas 2" in said for _, said in ended)


def test_jax_must_not_be_used_before(cluster):
    program = """
    if index == 1:
        jax.devices()
    rx.MultiWorkerMirroredStrategy(resolver, options)
    """
    chief, other = cluster(program, [0, 1], 2)
    text = "JAX was used before this process could join its cluster"
    assert other[0] == 1
    assert f"BackendAlreadyInitialized: {text}" in other[1]
    assert chief[0] == EXIT_CODE
    assert "worker 1 failed with an unhandled exception" in chief[1]
    assert chief[1].count("WorkerLost") == 1


def test_other_devices_are_noticed_at_the_start(cluster):
    program = """
    if index == 1:
        jax.config.update("jax_num_cpu_devices", 2)
    rx.MultiWorkerMirroredStrategy(resolver, options)
    """
    for code, said in cluster(program, [0, 1], 2):
        assert code in (1, EXIT_CODE)
        if code == 1:
            assert "WorkersDiffer: The workers differ in" in said
            assert "differ in number of devices:\n    number of devices:\n      worker 0 (" in said


class Line:
    """A channel over which the chief has told the port of JAX's service."""

    def __init__(self, port):
        self.port, self.failures = port, []

    def from_chief(self, name, payload):
        return str(self.port).encode()

    def fail(self, error):
        self.failures.append(error)


@pytest.fixture
def asked(monkeypatch):
    """The addresses at which JAX is asked to join, each of which is reached once."""
    reached = []

    def ask(place, *_, **__):
        socket.create_connection(split(place)).close()
        reached.append(place)

    monkeypatch.setattr(jax.distributed, "initialize", ask)
    monkeypatch.setattr(jax.config, "update", lambda *_: None)
    return reached


def test_a_worker_asks_jax_when_the_chief_listens(asked):
    """JAX would try again a second later."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        line = Line(listening.getsockname()[1])
        timer = threading.Timer(0.05, listening.listen)  # while the worker waits
        timer.start()
        processes._join_jax(JaxProcess("127.0.0.1:1", 2, 1), line, 0, 60.0)
        timer.join()
    assert len(asked) == 1 and line.failures == []


def test_a_firewall_before_the_second_port_is_told_to_all(asked):
    with free_ports(1) as (port,):
        line = Line(port)
        with pytest.raises(ClusterError, match=f"127.0.0.1:{port}.* RX_SECOND_PORT"):
            processes._join_jax(JaxProcess("127.0.0.1:1", 2, 1), line, 0, 0.3)
    assert asked == [] and f"127.0.0.1:{port}" in line.failures[0]


def test_the_second_port_must_be_free(no_secret, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        monkeypatch.setenv("RX_SECOND_PORT", str(port))
        with pytest.raises(ClusterError, match=f"port {port}, set by RX_SECOND_PORT"):
            join(JaxProcess("127.0.0.1:1", 2, 0))


def test_the_second_port_is_chosen_when_the_chief_has_its_first(no_secret, monkeypatch):
    """Else the system may choose the first one, which is free until then."""

    class Chosen(Exception):
        pass

    def hold(*_):
        with socket.create_connection(("127.0.0.1", port), 60):
            raise Chosen

    monkeypatch.setattr(processes, "hold", hold)
    with free_ports(1) as (port,), pytest.raises(Chosen):
        join(JaxProcess(f"127.0.0.1:{port}", 2, 0))


def split(address):
    host, _, port = address.rpartition(":")
    return host, int(port)
