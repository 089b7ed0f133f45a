"""Members that are forks of one process: they come back when they die, and all go in the end.

One cluster is of spawned processes, as everywhere but on Linux.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import replicax as rx
from replicax._ps.hosts.cluster import SERVER, WORKER, Members
from replicax._ps.hosts.started_cluster import StartedCluster, processes_of

import members
from helpers import wait_until
from members import about
from processes import is_running, running_with

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere there are no forks"),
]

TINY = "tiny_member:start_member"
SEEN = ["TF_CONFIG", "RX_WATCHDOG_SECONDS", "GLIBC_TUNABLES", "JAX_PLATFORMS", "OWN"]
SEEN += ["RX_COMPILATION_CACHE"]


def started(servers, workers, starter=TINY, **how):
    return StartedCluster.start(servers, workers, starter=starter, **how)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    kept = rx.config.compilation_cache(tmp_path_factory.mktemp("cache"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TF_CONFIG", '{"cluster": {"worker": ["a:1"]}}')
        patch.setenv("RX_WATCHDOG_SECONDS", "5")
        environment = dict(os.environ)
        on_cpu = {"JAX_PLATFORMS": "cpu"}
        server = Members(1, {**on_cpu, "OWN": str(kept.parent)})
        cluster = started(server, Members(2, on_cpu))
        assert os.environ == environment
    yield cluster
    cluster.close()
    rx.config.compilation_cache(False)
    assert not processes_of(cluster.session)
    assert not Path(cluster.folder).exists()


def test_members_are_there_and_know_the_secret(cluster):
    members.check_that_members_are_there_and_know_the_secret(cluster)


def test_a_member_has_the_environment_that_was_given_and_no_other_cluster(cluster):
    given = about(cluster, SERVER, 0, "given")["variables"]
    seen = {name: given.get(name) for name in SEEN}
    assert "arena_max=1" in seen.pop("GLIBC_TUNABLES")
    cache = seen.pop("OWN")
    assert seen == {
        "TF_CONFIG": None,
        "RX_WATCHDOG_SECONDS": None,
        "JAX_PLATFORMS": "cpu",
        "RX_COMPILATION_CACHE": cache,  # as the program chose
    }


def test_forks_do_not_draw_the_same_numbers(cluster):
    draws = [about(cluster, WORKER, index, "given")["draws"] for index in (0, 1)]
    assert draws[0] != draws[1]


def test_a_member_that_is_killed_comes_back(cluster):
    members.check_that_a_killed_member_comes_back(cluster)


def test_a_member_that_stands_still_comes_back_when_it_is_killed(cluster):
    members.check_that_one_that_stands_still_comes_back_when_it_is_killed(cluster)


def test_a_worker_can_come_in_addition(cluster):
    members.check_that_a_worker_can_come_in_addition(cluster)


def test_one_that_cannot_start_says_why_and_the_others_are_there(tmp_path):
    servers = Members(1, {"TINY_FAILS": "server"})
    cluster = started(servers, Members(1, {"TINY_DIES_ONCE": str(tmp_path / "x")}))
    try:
        with pytest.raises(rx.errors.UnavailableError, match="(?s)ps 0 .*has no disk"):
            cluster.member(SERVER, 0)
        # This one died at its start, without a word, and was started again.
        assert cluster.member(WORKER, 0).incarnation == 0
        assert (tmp_path / "x").exists()
    finally:
        cluster.close()


def test_spawned_members_are_there_come_back_and_end_with_the_cluster():
    environment = {"JAX_PLATFORMS": "cpu", "OWN": "its own"}
    cluster = started(Members(1, environment), Members(1), forks=False)
    try:
        assert about(cluster, SERVER, 0, "given")["variables"]["OWN"] == "its own"
        members.check_that_a_killed_member_comes_back(cluster)
        processes = [about(cluster, role, 0)["process"] for role in (SERVER, WORKER)]
        os.kill(cluster.session, signal.SIGKILL)
        wait_until(lambda: not any(map(is_running, processes)))
    finally:
        cluster.close()


@pytest.mark.parametrize("forks", [True, False])
def test_what_cannot_be_imported_is_told(forks):
    cluster = started(Members(1), Members(1), starter="no_such_module:start_member", forks=forks)
    try:
        with pytest.raises(rx.errors.UnavailableError, match="No module named 'no_such_module'"):
            cluster.member(SERVER, 0)
    finally:
        cluster.close()


def test_members_end_with_the_process_that_has_forked_them():
    cluster = started(Members(1), Members(0))
    process = about(cluster, SERVER, 0)["process"]
    os.kill(cluster.session, signal.SIGKILL)
    wait_until(lambda: not is_running(process))
    with pytest.raises(rx.errors.UnavailableError, match="process that starts members has ended"):
        cluster.member(SERVER, 0, after=0)
    cluster.close()


DRIVER = f"""
import os, signal, sys, time
sys.path[:0] = {sys.path!r}
import tiny_member
from replicax._ps.hosts.cluster import Members
from replicax._ps.hosts.started_cluster import StartedCluster
cluster = StartedCluster.start(Members(0), Members(1), starter={TINY!r})
if sys.argv[1] == "there":
    worker = tiny_member.about(cluster.member("worker", 0), cluster.secret, "given")["pid"]
    os.kill(worker, signal.SIGSTOP)
print(cluster.folder, flush=True)
time.sleep(600)  # until it is killed
"""


@pytest.mark.parametrize("when", ["there", "still starting"])
def test_a_program_that_is_killed_leaves_nothing_not_even_what_stands_still(when, tmp_path):
    environ = {**os.environ, "DIR": str(tmp_path)}
    command = [sys.executable, "-c", DRIVER, when]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE) as driver:
        folder = Path(os.fsdecode(driver.stdout.readline().strip()))
        assert folder.is_dir()
        driver.kill()
    wait_until(lambda: not running_with(f"DIR={tmp_path}"))
    wait_until(lambda: not folder.exists())
