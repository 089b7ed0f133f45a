"""Servers and workers that die, on a cluster of threads: what is lost, and that nothing is doubled.

To kill one is to close where it listens, and all of its connections, as the end of a process does.
"""

import functools
import logging
import threading

import keras
import numpy as np
import pytest

import replicax as rx
from replicax.coordinator import ClusterCoordinator

from helpers import wait_until


class Program:
    """Two counters, one on each server, and closures that add to both; and a table."""

    def __init__(self, strategy):
        self.strategy = strategy
        with self.strategy.scope():
            self.counters = [keras.Variable(0.0, name=f"counter_{k}") for k in range(2)]
            self.table = keras.Variable(np.zeros((8, 2), "float32"), name="table")
        self.coordinator = ClusterCoordinator(self.strategy)
        self.cluster = self.strategy.coordination.engine.cluster

        @rx.function
        def count():
            for counter in self.counters:
                counter.assign_add(1.0)

        self.count = count

    def node(self, server):
        return self.member("server", server).state

    def member(self, role, index):
        return self.cluster._running[role, index][1]

    def intercept(self, role, index, handle):
        """Let `handle(answer, session, message)` answer in place of `answer(session, message)`."""
        listener = self.member(role, index)._listener
        listener._handle = functools.partial(handle, listener._handle)

    def snapshot(self, server):
        assert self.node(server)._snapshots.take()

    def schedule(self, times):
        for _ in range(times):
            self.coordinator.schedule(self.count)

    def values(self):
        return [float(counter.value) for counter in self.counters]


@pytest.fixture
def start(started):
    """Makes programs; snapshots are taken when a test wants one."""
    return lambda **options: Program(started(workers=2, **{"snapshot_seconds": 3600.0, **options}))


def test_a_server_that_dies_comes_back_from_its_snapshot_and_says_what_was_lost(start, caplog):
    program = start()
    program.schedule(10)
    program.coordinator.join()
    program.snapshot(0)
    program.schedule(5)
    program.coordinator.join()
    program.cluster.kill("server", 0)
    program.schedule(20)
    program.coordinator.join()
    assert program.values() == [30.0, 35.0]
    (recovery,) = program.coordinator.recoveries
    assert (recovery.server, recovery.lost_updates, recovery.source) == (0, 5, "snapshot")
    assert recovery.seconds > 0
    assert "Parameter server 0 had died and is back from its snapshot after" in caplog.text
    assert "5 update(s) were lost" in caplog.text
    # It dies again; what was lost before is not counted again.
    program.cluster.kill("server", 0)
    program.schedule(1)
    program.coordinator.join()
    assert [one.lost_updates for one in program.coordinator.recoveries] == [5, 20]
    assert program.values() == [11.0, 36.0]


def test_with_replicas_nothing_is_lost_whoever_dies(start, caplog):
    program = start(replicas=1, snapshot_seconds=None)
    total = 0
    for server in (0, 1, 0):
        program.schedule(20)
        wait_until(lambda low=total: program.node(0).server.clock > low)
        program.cluster.kill("server", server)
        program.schedule(10)
        program.coordinator.join()
        total += 30
        assert program.values() == [total, total]
    assert [(one.server, one.lost_updates) for one in program.coordinator.recoveries] == [
        (0, 0),
        (1, 0),
        (0, 0),
    ]
    assert "is back from its replica" in caplog.text
    assert "nothing was lost" in caplog.text


def test_when_a_server_and_its_replica_die_there_is_the_snapshot(start, caplog):
    program = start(replicas=1)
    program.schedule(10)
    program.coordinator.join()
    for server in (0, 1):
        program.snapshot(server)
    program.schedule(5)
    program.coordinator.join()
    for server in (0, 1):
        program.cluster.kill("server", server)
    assert program.values() == [10.0, 10.0]
    assert "has no replica either" in caplog.text
    assert {(one.server, one.lost_updates) for one in program.coordinator.recoveries} == {
        (0, 5),
        (1, 5),
    }
    program.cluster.kill("server", 1)  # by now each has a replica again
    assert program.values() == [10.0, 10.0]
    assert program.coordinator.recoveries[-1].source == "replica"


def test_without_snapshots_a_server_that_dies_is_an_error_for_good(start):
    program = start(snapshot_seconds=None)
    program.schedule(3)
    program.coordinator.join()
    program.cluster.kill("server", 1)
    program.schedule(3)
    with pytest.raises(rx.errors.UnavailableError, match="snapshot_seconds") as caught:
        program.coordinator.join()
    assert caught.value.task == "/job:ps/task:1"
    with pytest.raises(rx.errors.UnavailableError, match="Server 1 .* 0 of the 1 changes"):
        program.values()
    assert program.coordinator.recoveries == ()


@pytest.mark.parametrize("applied", [False, True])
def test_what_the_program_changes_while_a_server_dies_is_changed_once(start, applied):
    program = start()
    server = program.table._home.places[0].server
    killed = []

    def dies(answer, session, message):
        if message.op != "scatter" or killed:
            return answer(session, message)
        killed.append(server)
        if applied:
            answer(session, message)
        program.cluster.kill("server", server)
        raise ConnectionError("this answer is never sent")

    program.intercept("server", server, dies)
    program.table._home.scatter("add", np.array([0, 3]), np.ones((2, 2), "float32"))
    expected = np.zeros((8, 2))
    expected[[0, 3]] = 1.0
    np.testing.assert_array_equal(program.table.value, expected)
    assert [one.lost_updates for one in program.coordinator.recoveries] == [0]


def test_a_closure_whose_worker_dies_between_two_servers_counts_once_on_each(start):
    program = start()
    program.schedule(1)
    program.coordinator.join()
    running = {}
    for index in range(2):

        def run(answer, session, message, index=index):
            running[message.head.get("closure")] = index
            return answer(session, message)

        program.intercept("worker", index, run)
    killed = []

    def kills_the_worker(answer, session, message):
        if message.op == "exchange" and message.head["push"] and not killed:
            killed.append(message.head["closure"])
            program.cluster.kill("worker", running[killed[0]])
            raise ConnectionError("this push is never applied")
        return answer(session, message)

    program.intercept("server", 1, kills_the_worker)
    program.schedule(10)
    program.coordinator.join()
    assert killed
    assert program.values() == [11.0, 11.0]


def test_a_worker_that_stands_still_is_replaced(start, caplog, monkeypatch):
    caplog.set_level(logging.WARNING)
    monkeypatch.setenv("RX_WATCHDOG_SECONDS", "2")
    program = start()
    program.schedule(1)
    program.coordinator.join()
    over = threading.Event()
    stopped = program.member("worker", 0)

    def stands_still(answer, session, message):
        over.wait(100)
        return answer(session, message)

    program.intercept("worker", 0, stands_still)
    program.schedule(10)
    program.coordinator.join()
    wait_until(lambda: program.member("worker", 0) is not stopped)
    over.set()
    assert program.values() == [11.0, 11.0]
    assert "The worker 0 has not answered for 2 seconds" in caplog.text
