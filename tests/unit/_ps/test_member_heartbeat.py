"""Who does not answer is taken for dead; who is busy, or not there, is not."""

import logging
import threading
from types import SimpleNamespace

import pytest

from replicax._control import Limits
from replicax._net import ConnectionLost
from replicax._ps.hosts.contact import Heartbeat

from helpers import begun_threads, wait_until


class Cluster:
    """Two servers and a worker; `mute` ones do not answer."""

    num_servers, num_workers = 2, 1

    def __init__(self):
        self.mute = set()
        self.absent = set()
        self.lost = set()  # their hosts do not even refuse a connection
        self.found = threading.Event()
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
            self.who, self.closed = who, False

        def begin(self, op):
            assert op == "ping"
            cluster.pings.append(self.who)
            return self.end

        def is_answered(self):
            return self.who not in cluster.mute

        def end(self, timeout):
            if not self.is_answered():
                assert timeout == 0.0
                raise ConnectionLost("no answer in time")
            late = cluster.late if self.who[0] == "server" else []
            return SimpleNamespace(head={"staleness": late})

        def close(self):
            self.closed = True

    def dial(addresses):
        if addresses in cluster.absent:
            raise ConnectionRefusedError
        if addresses in cluster.lost:
            cluster.found.wait(60)
            raise ConnectionRefusedError
        return Link(addresses)

    cluster.dial = dial
    return cluster


@pytest.fixture
def heartbeat(cluster):
    told = []
    heartbeat = Heartbeat(cluster, cluster.dial, Limits(silence=1.0), lambda *who: told.append(who))
    heartbeat.told = told
    heartbeat.start()
    yield heartbeat
    heartbeat.close()
    cluster.found.set()
    wait_until(lambda: not begun_threads("replicax-heartbeat"))


def test_who_is_silent_is_ended_and_the_others_go_on(cluster, heartbeat, caplog):
    caplog.set_level(logging.WARNING)
    wait_until(lambda: len(set(cluster.pings)) == 3)
    cluster.mute.add(("server", 1))
    wait_until(lambda: heartbeat.told)
    assert heartbeat.told == cluster.killed == [("server", 1)]
    assert "parameter server 1 has not answered for 1 seconds: it is taken for dead" in caplog.text
    count = cluster.pings.count(("server", 1))
    wait_until(lambda: cluster.pings.count(("server", 1)) > count + 2)  # and is asked again
    assert cluster.killed == [("server", 1)]


def test_who_is_not_there_is_not_silent(cluster, heartbeat):
    wait_until(lambda: len(set(cluster.pings)) == 3)
    cluster.absent |= {("worker", 0)}
    before = cluster.pings.count(("server", 0))
    wait_until(lambda: cluster.pings.count(("server", 0)) > before + 7)  # 1.4 seconds and more
    assert cluster.killed == []


def test_servers_say_how_late_gradients_were(cluster, heartbeat):
    assert heartbeat.staleness() == {}
    cluster.late = [[0, 2], [3, 1]]
    wait_until(lambda: heartbeat.staleness() == {0: 4, 3: 2})  # of both


def test_a_worker_that_joins_is_asked_too(cluster, heartbeat):
    cluster.num_workers = 2
    wait_until(lambda: ("worker", 1) in cluster.pings)


def test_a_cluster_that_cannot_end_it_stops_nothing(cluster, heartbeat, caplog, monkeypatch):
    monkeypatch.setattr(cluster, "kill", lambda *_: 1 / 0)
    cluster.mute.add(("worker", 0))
    wait_until(lambda: caplog.text.count("It could not be ended") > 1)
    wait_until(lambda: cluster.pings.count(("server", 0)) > 5)


def test_a_host_that_does_not_answer_is_silent_and_delays_nobody(cluster, heartbeat):
    cluster.lost.add(("worker", 1))
    cluster.num_workers = 2
    before = cluster.pings.count(("server", 0))
    wait_until(lambda: heartbeat.told)
    assert heartbeat.told == [("worker", 1)]
    assert cluster.pings.count(("server", 0)) > before + 2
    # A thread for all, and one that connects.
    assert len(begun_threads("replicax-heartbeat")) == 2
