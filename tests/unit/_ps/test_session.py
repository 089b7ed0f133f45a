"""All processes of a session are ended, and no other."""

import os
import signal
import subprocess
import sys

import pytest

from replicax._ps.hosts import started_cluster
from replicax._ps.hosts.started_cluster import end_session, processes_of

from helpers import wait_until
from processes import is_running

# A child and its own child, which the first does not end.
FAMILY = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
time.sleep(600)
"""


@pytest.fixture
def family():
    with subprocess.Popen([sys.executable, "-S", "-c", FAMILY], start_new_session=True) as first:
        wait_until(lambda: len(processes_of(first.pid)) == 2)
        yield first
        end_session(first.pid)


@pytest.fixture(params=["as_here", "elsewhere"])
def system(request, monkeypatch):
    """Also where there is no /proc."""
    if request.param == "elsewhere":
        monkeypatch.setattr(started_cluster, "_running_linux", started_cluster._running_elsewhere)


def test_processes_are_those_of_the_session(family, system):
    assert family.pid in processes_of(family.pid)
    assert os.getpid() not in processes_of(os.getsid(0))


def test_all_are_ended_stopped_ones_too(family, system):
    processes = processes_of(family.pid)
    os.kill(processes[-1], signal.SIGSTOP)
    assert end_session(family.pid) == []
    assert not any(map(is_running, processes))


def test_orphans_are_ended(family):
    family.kill()
    family.wait()
    (orphan,) = processes_of(family.pid)
    end_session(family.pid)
    assert not is_running(orphan)


def test_those_that_cannot_be_ended_are_told(monkeypatch):
    monkeypatch.setattr(
        started_cluster, "processes_of", lambda _: [2**22 + 1]
    )  # there is no such process
    assert end_session(2**22 + 1, seconds=0) == [2**22 + 1]
