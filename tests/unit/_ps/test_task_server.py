"""`Server`: which task a process is, where it listens, and when it ends."""

import json
import os
import signal
import socket
import sys
import textwrap
from pathlib import Path

import pytest

import replicax as rx
from replicax._ps.hosts import given_cluster
from replicax._ps.hosts.cluster import WORKER
from replicax._ps.hosts.given_cluster import (
    GivenCluster,
    Server,
    interface_of,
    serve_this_task_if_member,
)
from replicax.cluster_resolver import ClusterSpec, SimpleClusterResolver
from replicax.launch._ports import free_ports

from helpers import start_program, wait_until

JOBS = {"worker": ["localhost:2222", "localhost:2223"], "ps": ["localhost:2224"]}
SECRET = "thirty-two bytes, as all others."


@pytest.fixture(autouse=True)
def secret(monkeypatch):
    monkeypatch.setenv("RX_CLUSTER_SECRET", SECRET)
    monkeypatch.setattr(given_cluster, "START_MEMBER", "tiny_member:start_member")


def task(server):
    definition = server.server_def
    return definition.job_name, definition.task_index


def test_the_task_is_the_one_that_is_named():
    server = Server(JOBS, "worker", 1, protocol="grpc", config=object(), start=False)
    assert task(server) == ("worker", 1)
    assert server.target == "tcp://localhost:2223"
    assert server.server_def.cluster == ClusterSpec(JOBS)
    assert server.server_def.protocol == "grpc"


def test_the_task_may_be_a_resolvers_or_the_only_one():
    resolver = SimpleClusterResolver(JOBS, task_type="ps", task_id=0)
    assert task(Server(resolver, start=False)) == ("ps", 0)
    assert task(Server(resolver, "worker", 1, start=False)) == ("worker", 1)
    assert task(Server(JOBS, "ps", start=False)) == ("ps", 0)
    assert task(Server({"worker": ["a:1"]}, start=False)) == ("worker", 0)
    assert task(Server(Server(resolver, start=False).server_def, start=False)) == ("ps", 0)


class LikeTensorFlows:
    def as_dict(self):
        return JOBS


def test_the_cluster_may_be_tensorflows():
    assert task(Server(LikeTensorFlows(), "ps", 0, start=False)) == ("ps", 0)


@pytest.mark.parametrize("job", [None, "worker"])
def test_a_task_that_is_not_clear_is_refused(job):
    with pytest.raises(rx.errors.ClusterSpecError, match="job_name=.*task_index=None"):
        Server(JOBS, job, start=False)


def test_the_chief_does_not_serve():
    with pytest.raises(rx.errors.ClusterSpecError, match="chief 0.*ps and worker"):
        Server({**JOBS, "chief": ["localhost:1"]}, "chief", 0, start=False)


def test_a_task_that_is_not_in_the_cluster_is_refused():
    with pytest.raises(rx.errors.ClusterSpecError, match="has no task"):
        Server(JOBS, "worker", 2, start=False)


def test_what_is_not_started_cannot_be_joined():
    with pytest.raises(rx.errors.UsageError, match="server.start"):
        Server(JOBS, "worker", 0, start=False).join()


def test_an_address_that_is_taken_is_told():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(rx.errors.ClusterSpecError, match="worker 0 at .*in use"):
            Server({"worker": [address]})


def test_a_name_that_does_not_lead_here_means_all_interfaces():
    assert interface_of("192.0.2.1") == ""
    assert interface_of("no such host.invalid") == ""


@pytest.fixture
def addresses():
    with free_ports(3) as ports:
        yield [f"127.0.0.1:{port}" for port in ports]


def test_one_process_may_have_all_servers_of_a_cluster(addresses):
    ps, *workers = addresses
    spec = ClusterSpec({"ps": [ps], "worker": workers})
    for job, index in (("ps", 0), ("worker", 0), ("worker", 1)):
        Server(spec, job, index)
    cluster = GivenCluster(spec, SECRET.encode())
    assert [cluster.member(WORKER, index).index for index in (0, 1)] == [0, 1]
    cluster.close()
    wait_until(lambda: all(map(is_free, [ps, *workers])))


def is_free(address):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", int(address.rpartition(":")[2]))) != 0


@pytest.fixture
def program(tmp_path, addresses):
    """Run a program as a task of a cluster of one worker; end it."""
    address, *_ = addresses
    jobs = {"worker": [address], "ps": ["127.0.0.1:1"]}
    config = {"cluster": jobs, "task": {"type": "worker", "index": 0}}
    cluster = GivenCluster(ClusterSpec(jobs), SECRET.encode())
    started = []

    def program(code):
        prelude = f"""
            import sys
            sys.path[:0] = {sys.path!r}
            import replicax as rx
            from replicax._ps.hosts import given_cluster
            given_cluster.START_MEMBER = "tiny_member:start_member"
        """
        environ = {**os.environ, "TF_CONFIG": json.dumps(config)}
        program = textwrap.dedent(prelude) + textwrap.dedent(code)
        process = start_program([sys.executable, "-c", program], env=environ, stderr=None)
        started.append(process)
        return process, cluster

    yield program
    for process in started:
        process.kill()
        process.communicate()


def test_a_server_serves_until_the_coordinator_says_goodbye(program):
    process, cluster = program("""
        resolver = rx.cluster_resolver.TFConfigClusterResolver()
        server = rx.Server(resolver.cluster_spec(), resolver.task_type, resolver.task_id)
        server.join()
        print("went on")
        given_cluster.serve_this_task_if_member()  # that has been done
        print("not this far")
    """)
    assert cluster.member(WORKER, 0, timeout=60).incarnation == 0
    cluster.close()
    out, _ = process.communicate(timeout=100)
    assert (process.returncode, out) == (0, "went on\n")


def test_a_program_that_is_any_task_serves_and_ends_where_it_is_a_member(program):
    process, cluster = program("""
        given_cluster.serve_this_task_if_member()
        print("not this far")
    """)
    cluster.member(WORKER, 0, timeout=60)
    cluster.close()
    out, _ = process.communicate(timeout=100)
    assert (process.returncode, out) == (0, "")


def catches(pid, number):
    """Whether a process has a handler for a signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


def test_sigterm_ends_a_server_in_order(program, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    process, cluster = program("""
        try:
            rx.Server(rx.cluster_resolver.TFConfigClusterResolver()).join()
        finally:
            print("in order")
    """)
    cluster.member(WORKER, 0, timeout=60)
    wait_until(lambda: catches(process.pid, signal.SIGTERM))  # it joins when it already serves
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=100)
    assert (process.returncode, out) == (128 + signal.SIGTERM, "in order\n")
    assert list(tmp_path.glob("replicax-*")) == []  # where its Unix socket was


def test_ctrl_c_ends_a_member_without_a_traceback(program):
    process, cluster = program("given_cluster.serve_this_task_if_member()")
    cluster.member(WORKER, 0, timeout=60)
    wait_until(lambda: catches(process.pid, signal.SIGTERM))  # it joins when it already serves
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=100)
    assert process.returncode == 128 + signal.SIGINT  # after a traceback Python ends by the signal


@pytest.mark.parametrize(
    ("jobs", "job"), [({**JOBS, "chief": ["c:1"]}, "chief"), ({"worker": ["a:1", "b:1"]}, "worker")]
)
def test_who_is_no_member_goes_on(jobs, job):
    serve_this_task_if_member(SimpleClusterResolver(jobs, task_type=job, task_id=0))


def test_without_a_cluster_all_goes_on(monkeypatch):
    monkeypatch.setattr(given_cluster, "detect", lambda: None)
    serve_this_task_if_member()


def test_a_local_server_listens_on_a_free_port():
    server = Server.create_local_server(start=False)
    assert task(server) == ("worker", 0)
    assert server.target.startswith("tcp://localhost:")
