"""Who does not answer is taken for dead; who is busy, or not there, is not."""

from __future__ import annotations

import logging
import threading
from types import SimpleNamespace

import pytest

from replicax._control import Limits
from replicax._net import ConnectionLost
from replicax._ps.hosts.pulse import Pulse

from helpers import begun_threads, wait_until


class Cluster:
    """Two servers and a worker; `mute` ones do not answer."""

    num_servers, num_workers = 2, 1

    def __init__(self):
        self.mute = set()
        self.absent = set()
        self.killed = []
        self.pings = []
        self.late = []

    def member(self, role, index, *, timeout):
        return SimpleNamespace(addresses=(role, index))

    def kill(self, role, index):
        self.killed.append((role, index))
        self.mute.discard((role, index))


@pytest.fixture
def cluster():
    cluster = Cluster()

    class Link:
        def __init__(self, who):
            self.who, self.closed = who, threading.Event()

        def call(self, op):
            assert op == "ping"
            cluster.pings.append(self.who)
            if self.who in cluster.mute:
                self.closed.wait(60)
            if self.closed.is_set():
                raise ConnectionLost("closed")
            late = cluster.late if self.who[0] == "server" else []
            return SimpleNamespace(head={"staleness": late})

        def close(self):
            self.closed.set()

    def dial(addresses):
        if addresses in cluster.absent:
            raise ConnectionRefusedError
        return Link(addresses)

    cluster.dial = dial
    return cluster


@pytest.fixture
def pulse(cluster):
    told = []
    pulse = Pulse(cluster, cluster.dial, Limits(silence=1.0), lambda *who: told.append(who))
    pulse.told = told
    pulse.start()
    yield pulse
    pulse.close()
    wait_until(lambda: not begun_threads("replicax-pulse"))


def test_who_is_silent_is_ended_and_the_others_go_on(cluster, pulse, caplog):
    caplog.set_level(logging.WARNING)
    wait_until(lambda: len(set(cluster.pings)) == 3)
    cluster.mute.add(("server", 1))
    wait_until(lambda: pulse.told)
    assert pulse.told == cluster.killed == [("server", 1)]
    assert "parameter server 1 has not answered for 1 seconds: it is taken for dead" in caplog.text
    count = cluster.pings.count(("server", 1))
    wait_until(lambda: cluster.pings.count(("server", 1)) > count + 2)  # and is asked again
    assert cluster.killed == [("server", 1)]


def test_who_is_not_there_is_not_silent(cluster, pulse):
    wait_until(lambda: len(set(cluster.pings)) == 3)
    cluster.absent |= {("worker", 0)}
    before = cluster.pings.count(("server", 0))
    wait_until(lambda: cluster.pings.count(("server", 0)) > before + 7)  # 1.4 seconds and more
    assert cluster.killed == []


def test_servers_say_how_late_gradients_were(cluster, pulse):
    assert pulse.staleness() == {}
    cluster.late = [[0, 2], [3, 1]]
    wait_until(lambda: pulse.staleness() == {0: 4, 3: 2})  # of both


def test_a_worker_that_joins_is_asked_too(cluster, pulse):
    cluster.num_workers = 2
    wait_until(lambda: ("worker", 1) in cluster.pings)


def test_a_cluster_that_cannot_end_it_stops_nothing(cluster, pulse, caplog, monkeypatch):
    monkeypatch.setattr(cluster, "kill", lambda *_: 1 / 0)
    cluster.mute.add(("worker", 0))
    wait_until(lambda: caplog.text.count("It could not be ended") > 1)
    wait_until(lambda: cluster.pings.count(("server", 0)) > 5)
