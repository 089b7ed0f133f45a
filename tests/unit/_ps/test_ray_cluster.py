"""Members on a real Ray: started once for all tests here, and once more to be killed."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from glob import glob
from pathlib import Path

import pytest

import replicax as rx
from replicax._cpu.tuning import choose
from replicax._net import Refused
from replicax._ps.hosts.cluster import SERVER, WORKER
from replicax._ps.hosts.session import processes_of
from replicax._ps.hosts.started_cluster import RAY, Members, StartedCluster

import members
import tiny_member
from helpers import wait_until
from members import about
from processes import is_running, running_with

pytestmark = [
    pytest.mark.timeout(500),
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="it looks at processes"),
]

TINY = "tiny_member:start_member"
SEEN = ["RX_WATCHDOG_SECONDS", "TF_CONFIG", "KERAS_BACKEND", "JAX_PLATFORMS", "GLIBC_TUNABLES"]
SEEN += ["RX_CPU_TUNING"]


@pytest.fixture(scope="module")
def cluster():
    """One server and two workers, on a Ray of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TF_CONFIG", '{"cluster": {"worker": ["a:1"]}}')
        patch.setenv("RAY_ADDRESS", "192.0.2.1:1")  # that of a Ray around this program
        patch.setenv("RX_WATCHDOG_SECONDS", "5")
        environment = dict(os.environ)
        server = Members(1, {"variables": SEEN}, {"JAX_PLATFORMS": "cpu"})
        with choose({"memory", "pooling"}):
            cluster = StartedCluster.start(server, Members(2), host=RAY, starter=TINY)
        assert os.environ == environment
    with pytest.raises(rx.errors.UnavailableError, match="no worker 1 within 0.01 seconds; it has"):
        cluster.member(WORKER, 1, timeout=0.01)
    yield cluster
    cluster.close()
    assert not processes_of(cluster.session)


def process_of(cluster, role, index):
    return about(cluster, role, index)["process"]


def test_the_program_goes_on_without_ray(cluster):
    assert cluster.member(SERVER, 0).task == "/job:ps/task:0"
    assert "ray" not in sys.modules
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_members_are_there_and_know_the_secret(cluster):
    members = [(SERVER, 0), (WORKER, 0), (WORKER, 1)]
    found = [about(cluster, *member) for member in members]
    assert [(one["role"], one["index"]) for one in found] == members
    assert len({one["process"] for one in found}) == 3
    with pytest.raises(Refused):
        tiny_member.about(cluster.member(WORKER, 0), b"another secret of 32 bytes......")


def test_a_member_has_the_environment_that_was_given_and_no_other_cluster(cluster):
    server = cluster.member(SERVER, 0)
    seen = tiny_member.about(server, cluster.secret, "given")["variables"]
    assert re.search(r"mmap_max=0.*arena_max=1", seen.pop("GLIBC_TUNABLES"))
    assert seen == {
        "RX_WATCHDOG_SECONDS": None,
        "TF_CONFIG": None,
        "KERAS_BACKEND": "jax",
        "JAX_PLATFORMS": "cpu",
        "RX_CPU_TUNING": "memory,pooling",  # as the program chose, not as its environment says
    }


def test_all_of_it_listens_on_the_loopback_interface_only(cluster):
    cluster.member(WORKER, 1)
    own = {f"socket:[{inode}]" for inode in inodes_of(cluster.session)}
    listening = [line for line in listeners() if f"socket:[{line.split()[9]}]" in own]
    hosts = {line.split()[1].rpartition(":")[0] for line in listening}
    # 127.0.0.1, and the same as an address of IPv6, as the kernel writes them
    assert hosts == {"0100007F", "0000000000000000FFFF00000100007F"}
    ports = {int(line.split()[1].rpartition(":")[2], 16) for line in listening}
    assert len(ports) > 5
    assert 8265 not in ports  # the dashboard's


def listeners():
    tables = [Path(f"/proc/net/{name}").read_text() for name in ("tcp", "tcp6")]
    return [line for table in tables for line in table.splitlines() if line.split()[3] == "0A"]


def inodes_of(session):
    for link in (link for pid in processes_of(session) for link in glob(f"/proc/{pid}/fd/*")):
        with suppress(OSError):  # closed meanwhile
            target = os.readlink(link)
            if target.startswith("socket:["):
                yield target[8:-1]


def test_a_member_that_is_killed_comes_back(cluster):
    members.check_that_a_killed_member_comes_back(cluster)


def test_a_member_that_stands_still_comes_back_when_it_is_killed(cluster):
    members.check_that_one_that_stands_still_comes_back_when_it_is_killed(cluster)


def test_a_worker_can_come_in_addition(cluster):
    members.check_that_a_worker_can_come_in_addition(cluster)


def variables_of(process):
    text = Path(f"/proc/{process}/environ").read_bytes().decode()
    return dict(entry.split("=", 1) for entry in text.split("\0") if entry)


def address_of(cluster):
    """Where the Ray of this cluster can be joined."""
    commands = " ".join(map(command_of, processes_of(cluster.session)))
    (address,) = set(re.findall(r"--gcs-address=(127\.0\.0\.1:\d+)", commands))
    return address


def command_of(process):
    with suppress(OSError):  # ended meanwhile
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return ""


@pytest.fixture
def near(monkeypatch):
    """Let Ray take an address of the loopback interface for what it is."""
    monkeypatch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")


def test_another_cluster_joins_the_same_ray_and_leaves_it(cluster, near, monkeypatch):
    cluster.member(WORKER, 0)
    variables = variables_of(cluster.session)
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):
        monkeypatch.setenv(name, variables[name])
    # What other machines would find in their installation.
    runtime_env = {"env_vars": {"PYTHONPATH": os.pathsep.join(sys.path)}}
    nothing = {"CPU": 0}  # that Ray has no cores to give
    joined = StartedCluster.start(
        Members(1, resources=nothing),
        Members(1, {"fails": True}, resources=nothing),
        host=RAY,
        address=address_of(cluster),
        runtime_env=runtime_env,
        starter=TINY,
    )
    try:
        process = process_of(joined, SERVER, 0)
        assert process in processes_of(cluster.session)
        with pytest.raises(rx.errors.UnavailableError, match="(?s)worker 0, which .* has no disk"):
            joined.member(WORKER, 0)
    finally:
        joined.close()
    wait_until(lambda: not is_running(process))
    assert process_of(cluster, WORKER, 1) in processes_of(cluster.session)


def test_without_the_token_nobody_is_let_in(cluster, near):
    cluster.member(WORKER, 0)
    code = f"import ray; ray.init({address_of(cluster)!r}); print('let in')"
    with subprocess.Popen(
        [sys.executable, "-c", code], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as intruder:
        told = next(line for line in intruder.stdout if re.search("AuthToken|let in", line))
        intruder.kill()  # it would try again and again
    assert "InvalidAuthToken: Authentication token is missing or incorrect" in told


def test_a_ray_that_is_not_there_is_told_at_once():
    with socket.create_server(("127.0.0.1", 0)) as held:
        address = f"127.0.0.1:{held.getsockname()[1]}"
    joined = StartedCluster.start(Members(1), Members(0), host=RAY, address=address, starter=TINY)
    try:
        with pytest.raises(rx.errors.UnavailableError, match="(?s)will not: .*Connection refused"):
            joined.member(SERVER, 0)
    finally:
        joined.close()


DRIVER = f"""
import sys, time
sys.path[:0] = {sys.path!r}
import tiny_member
from replicax._ps.hosts.started_cluster import RAY
from replicax._ps.hosts.started_cluster import Members, StartedCluster
workers = Members(1, {{"variables": ["TMPDIR"]}})
cluster = StartedCluster.start(Members(0), workers, host=RAY, starter={TINY!r})
worker = tiny_member.about(cluster.member("worker", 0), cluster.secret, "given")
print(worker["pid"], worker["variables"]["TMPDIR"], flush=True)
time.sleep(600)
"""


def test_a_program_that_is_killed_leaves_nothing_not_even_what_stands_still(tmp_path):
    environ = {**os.environ, "DIR": str(tmp_path)}
    command = [sys.executable, "-c", DRIVER]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE) as driver:
        worker, folder = driver.stdout.readline().split()
        os.kill(int(worker), signal.SIGSTOP)
        assert Path(os.fsdecode(folder)).is_dir()
        assert len(running_with(f"DIR={tmp_path}")) > 5
        driver.kill()
    wait_until(lambda: not running_with(f"DIR={tmp_path}"))
    wait_until(lambda: not Path(os.fsdecode(folder)).exists())
