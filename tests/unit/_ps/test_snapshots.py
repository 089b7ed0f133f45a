"""What a server writes while it goes on, and what another process restores from it."""

import logging
import threading
import time

import keras
import numpy as np
import pytest
from faults.planted import Planted, plant_in_journal, plant_in_manifest

from replicax._net import raw
from replicax._ps.server import snapshots as module
from replicax._ps.server.code import MissingCode
from replicax._ps.server.server import ParameterServer
from replicax._ps.server.snapshot_files import OtherFormat, SnapshotFolder
from replicax._ps.server.snapshots import Snapshots
from replicax._ps.variables.shard_optimizer import Recipe

from helpers import wait_until
from server_messages import Asked, held, ones

ROWS = 1000


class Process:
    """A server with snapshots, as one process of it; `die` ends it as kill does.

    The coordinator sends the next one the code that it has sent before.
    """

    def __init__(self, path, run="run", writer="aa", code=()):
        self.asked = Asked(ParameterServer(0, {"code": code}))
        self.server = self.asked.server
        self.folder = SnapshotFolder(path, writer)
        self.snapshots = Snapshots(self.server, self.folder, run=run, seconds=3600)
        self.snapshots.begin()

    def die(self):
        self.snapshots.close()


@pytest.fixture
def start(tmp_path):
    """Starts processes of one server, one after the other."""
    started = []

    def start(**kwargs):
        if started:
            started[-1].die()
            kwargs = {"code": started[-1].server.code.pickled(), **kwargs}
        started.append(Process(tmp_path / "server-0", writer=f"{len(started):02x}", **kwargs))
        return started[-1]

    yield start
    started[-1].die()


def trained(process):
    """A variable that closures add to, and one that is trained."""
    asked = process.asked
    asked.create(0, [0.0], "counter")
    asked.create(1, ones(2), "kernel")
    asked.host(keras.optimizers.Adam(0.1), [1])
    asked.plan(cells=[1], writes=[0])
    for closure in range(5):
        asked.push(closure, [ones(2), ones(1)])
    return asked


def files(process, kind=""):
    return sorted(p.name for p in process.folder.path.iterdir() if p.name.startswith(kind))


def test_a_new_process_has_all_that_was_in_the_snapshot(start):
    first = start()
    asked = trained(first)
    asked.ask("tune", {"id": 0, "set": {"learning_rate": 0.5}, "request": 10**6})
    before = held(asked.server)
    assert first.snapshots.take()
    asked.push(5, [ones(2), ones(1)])
    second = start()
    assert held(second.asked.server) == before
    # The lost closure is run again, others are known.
    second.asked.plan(cells=[1], writes=[0])
    for closure in (3, 4, 5):
        second.asked.push(closure, [ones(2), ones(1)])
    assert held(second.asked.server)["values"] == held(asked.server)["values"]


def test_what_the_program_has_changed_is_never_lost(start):
    first = start()
    asked = trained(first)
    first.snapshots.take()
    asked.push(5, [ones(2), ones(1)])
    asked.change("write", {"items": [[1, None, "set"]]}, [memoryview(2 * ones(2)).cast("B")])
    asked.create(2, [7.0], "made later")
    second = start().asked
    assert second.server.changes == asked.server.changes
    assert second.server.requests.ids() == asked.server.requests.ids()
    np.testing.assert_array_equal(second.value(0, (1,)), [5.0])  # the sixth push was lost
    np.testing.assert_array_equal(second.value(1, (2,)), [2.0, 2.0])
    np.testing.assert_array_equal(second.value(2, (1,)), [7.0])


def test_without_a_snapshot_there_are_the_variables_as_they_were_made(start):
    asked = trained(start())
    second = start().asked
    assert second.server.changes == asked.server.changes
    np.testing.assert_array_equal(second.value(0, (1,)), [0.0])
    third = start().asked  # nothing was changed between
    assert held(third.server) == held(second.server)


def test_a_request_that_is_made_again_changes_nothing(start):
    first = start()
    trained(first)
    head = {"id": 0, "set": {"learning_rate": 0.25}, "request": 10**6}
    assert first.asked.ask("tune", head).head["learning_rate"] == 0.25
    assert first.asked.ask("tune", {**head, "set": {"learning_rate": 1.0}}).head == {
        "iterations": 5,
        "learning_rate": 0.25,
    }
    scatter = {"cell": 1, "how": "add", "one": True, "request": 10**6 + 1}
    buffers = [memoryview(np.array([0, 1])).cast("B"), memoryview(np.float32(1)).cast("B")]
    before = first.asked.value(1, (2,))
    first.asked.ask("scatter", scatter, buffers)
    second = start().asked
    second.ask("scatter", scatter, buffers)
    np.testing.assert_array_equal(second.value(1, (2,)), ones(2) + 1)  # without the pushes
    assert (before != 1).all()


def test_nothing_new_is_not_written_again(start):
    first = start()
    trained(first)
    assert first.snapshots.take()
    assert not first.snapshots.take()
    assert len(files(first, "snapshot")) == 1


def test_what_has_not_changed_stays_where_it_was(start):
    first = start()
    asked = first.asked
    asked.create(0, ones(100_000), "still")
    asked.create(1, [0.0], "moving")
    asked.plan(writes=[1])
    for closure in range(5):
        asked.push(closure, [ones(1)])
        first.snapshots.take()
    kept = [path for _, path in first.folder.found("snapshot")]
    assert len(kept) == 2
    still, moving = ([path / f"cell-{n}.bin" for path in kept] for n in (0, 1))
    assert len({path.stat().st_ino for path in still}) == 1
    assert len({path.stat().st_ino for path in moving}) == 2
    second = start().asked
    np.testing.assert_array_equal(second.value(1, (1,)), [5.0])
    np.testing.assert_array_equal(second.value(0, (100_000,)), ones(100_000))


def table(process, optimizer=None):
    asked = process.asked
    asked.create(0, np.zeros((ROWS, 8)), "table")
    asked.host(optimizer or keras.optimizers.Adagrad(0.5), [0])
    asked.plan(tables=[0])
    return asked


def push_rows(asked, closure, rows):
    rows = np.asarray(rows, np.int64)
    asked.push(closure, [rows, ones(len(rows), 8)])


def test_a_table_comes_back_with_its_slots(start):
    first = start()
    asked = table(first)
    for closure, rows in enumerate([range(ROWS), [1, 500], [2, 500]]):
        push_rows(asked, closure, rows)
        first.snapshots.take()
    second = start()
    assert held(second.asked.server) == held(asked.server)
    second.asked.plan(tables=[0])
    push_rows(second.asked, 9, [2])
    second.snapshots.take()
    assert held(start().asked.server) == held(second.asked.server)


def test_without_hard_links_what_has_not_changed_is_copied(start, monkeypatch):
    def refused(*_):
        raise OSError("no hard links here")

    monkeypatch.setattr("os.link", refused)
    first = start()
    asked = trained(first)
    first.snapshots.take()
    asked.create(2, [7.0], "made later")
    first.snapshots.take()
    assert held(start().asked.server) == held(asked.server)


def test_a_table_that_is_assigned_or_gets_an_optimizer_is_written_whole(start):
    first = start()
    asked = table(first)
    push_rows(asked, 0, [1])
    first.snapshots.take()
    asked.change("write", {"items": [[0, None, "set"]]}, [memoryview(ones(ROWS, 8)).cast("B")])
    push_rows(asked, 1, [1])
    first.snapshots.take()
    assert held(start().asked.server) == held(asked.server)


def test_a_snapshot_is_of_one_moment_although_pushes_go_on(start, monkeypatch):
    monkeypatch.setattr("replicax._ps.server.cells.BLOCK_BYTES", 1 << 10)
    first = start()
    asked = table(first, keras.optimizers.SGD(1.0))
    asked.create(1, [0.0], "counter")
    asked.plan(tables=[0], writes=[1])
    over = threading.Event()

    def train():
        closure = 0
        while not over.is_set():
            rows = np.arange(closure % 10, ROWS, 10)
            asked.push(closure, [rows, ones(len(rows), 8), ones(1)])
            closure += 1

    thread = threading.Thread(target=train)
    thread.start()
    try:
        for _ in range(3):
            before = asked.server.clock
            wait_until(lambda before=before: asked.server.clock > before + 3)
            assert first.snapshots.take()
    finally:
        over.set()
        thread.join()
    second = start().asked
    applied = second.server.applied.ids()
    assert applied == list(range(second.server.clock))
    assert second.value(1, (1,)) == [second.server.clock]
    # Each push has taken 1 from every tenth row.
    counts = np.bincount(np.array(applied) % 10, minlength=10)
    expected = -np.tile(counts, ROWS // 10)[:, None] * ones(1, 8)
    np.testing.assert_array_equal(second.value(0, (ROWS, 8)), expected)
    assert asked.server.cells[0].captures == []


def test_the_lock_is_held_for_an_instant(start):
    first = start()
    asked = first.asked
    for number in range(100):
        asked.create(number, ones(10_000), f"v{number}")
    locked = []
    lock = first.server.lock

    class Timed:
        def __enter__(self):
            lock.acquire()
            self.began = time.thread_time()

        def __exit__(self, *_):
            locked.append(time.thread_time() - self.began)
            lock.release()

    first.server.lock = Timed()
    first.snapshots.take()
    assert min(locked) < 2e-2  # of CPU, for all of 4 MB


@pytest.mark.parametrize(
    "where", ["os.rename", "os.fsync", "json.dumps", f"{module.__name__}.write_cell"]
)
def test_a_crash_while_writing_leaves_the_last_one(start, monkeypatch, where):
    first = start()
    asked = trained(first)
    first.snapshots.take()
    before = held(asked.server)
    asked.push(5, [ones(2), ones(1)])

    def crash(*_, **__):
        raise OSError("no space is left")

    with monkeypatch.context() as patch:
        patch.setattr(where, crash)
        with pytest.raises(OSError, match="no space"):
            first.snapshots.take()
    assert held(start().asked.server) == before


def test_after_a_failure_the_next_snapshot_is_whole(start, monkeypatch):
    first = start()
    asked = table(first)
    push_rows(asked, 0, [1])
    first.snapshots.take()
    push_rows(asked, 1, [2])
    with monkeypatch.context() as patch:
        patch.setattr(module, "write_state", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            first.snapshots.take()
    push_rows(asked, 2, [3])
    assert first.snapshots.take()
    assert held(start().asked.server) == held(asked.server)
    assert len(files(first, "snapshot")) == 2
    assert not files(first, ".")  # what was given up is gone


def test_a_process_that_has_ended_publishes_nothing(start, monkeypatch):
    first = start()
    asked = trained(first)
    first.snapshots.take()
    before = held(asked.server)
    asked.push(5, [ones(2), ones(1)])

    def end(*_):
        first.snapshots._ended.set()

    monkeypatch.setattr(module, "write_state", end)
    assert not first.snapshots.take()
    assert len(files(first, "snapshot")) == 1
    assert held(start().asked.server) == before


def test_what_a_killed_process_has_begun_is_removed(start):
    first = start()
    asked = trained(first)
    left = first.folder.path / ".snapshot-00000009-ff.partial-host-1-12345678"
    left.mkdir()
    (left / "cell-0.bin").write_bytes(b"half")
    assert first.snapshots.take()
    assert not left.exists()
    assert held(start().asked.server) == held(asked.server)


@pytest.mark.parametrize("damaged", [lambda d: d[:-1] + b"x", lambda d: d[:-1], lambda d: b""])
def test_a_damaged_snapshot_gives_way_to_the_one_before(start, caplog, damaged):
    first = start()
    asked = trained(first)
    first.snapshots.take()
    asked.create(2, [7.0], "made later")
    asked.push(5, [ones(2), ones(1)])
    first.snapshots.take()
    newest = first.folder.found("snapshot")[-1][1] / "cell-0.bin"
    newest.write_bytes(damaged(newest.read_bytes()))
    second = start().asked
    assert "is damaged" in caplog.text
    np.testing.assert_array_equal(second.value(0, (1,)), [5.0])
    np.testing.assert_array_equal(second.value(2, (1,)), [7.0])


def test_when_all_are_damaged_it_says_so(start, caplog):
    first = start()
    asked = trained(first)
    for closure in (5, 6, 7):
        asked.push(closure, [ones(2), ones(1)])
        first.snapshots.take()
    for name in files(first, "snapshot"):
        (first.folder.path / name / "state.json").write_text("[1, 2")
    second = start().asked
    assert "There is no whole snapshot of parameter server 0" in caplog.text
    assert not second.server.cells


def test_another_run_finds_nothing(start):
    trained(start())
    assert not start(run="another").server.cells


def test_a_disk_that_is_full_does_not_stop_training(start, caplog, monkeypatch):
    first = start()
    asked = trained(first)

    def full(*_):
        raise OSError("no space is left")

    with monkeypatch.context() as patch:
        patch.setattr("replicax._ps.server.snapshot_files._write", full)
        asked.create(2, [7.0], "made later")
    assert "cannot write to" in caplog.text
    asked.create(3, [8.0], "made after")
    assert first.snapshots.take()  # and all is well again
    assert held(start().asked.server) == held(asked.server)


def test_they_are_taken_by_themselves(tmp_path, caplog, monkeypatch):
    caplog.set_level(logging.WARNING)
    server = ParameterServer(0, {})
    asked = Asked(server)
    folder = SnapshotFolder(tmp_path / "server-0", "aa")
    snapshots = Snapshots(server, folder, run="run", seconds=0.01)
    snapshots.begin()
    try:
        asked.create(0, [1.0])
        wait_until(lambda: folder.found("snapshot"))
        with monkeypatch.context() as patch:
            patch.setattr(module.Snapshots, "_write", lambda *_: 1 / 0)
            asked.create(1, [1.0])
            wait_until(lambda: "cannot write snapshots" in caplog.text)
        wait_until(lambda: folder.found("snapshot")[-1][0] > 3)
        assert caplog.text.count("cannot write snapshots") == 1
    finally:
        snapshots.close()


class Own(keras.optimizers.SGD):
    """An optimizer of the program, which no module holds that a server could import."""


def doubled(kernel):
    return 2 * kernel


def constrained(asked):
    """Cells that both an optimizer and a constraint of the program are for; one has momenta."""
    asked.create(1, ones(2), "kernel")
    asked.create(2, [1.0, 5.0], "other")
    recipe = asked.learn(Recipe.of(Own(0.5, momentum=0.5)))
    about = {"id": 0, "iterations": 3, "learning_rate": 0.5, "cells": [], "constraint": None}
    asked.change("attach", {**about, "recipe": recipe})
    head = {"id": 0, "cells": [[1, 1, True]], "constraint": asked.learn(doubled)}
    momenta = np.array([0.25, 0.5], "float32")
    asked.change("attach", head, [raw(momenta)])
    asked.change("attach", {**head, "cells": [[2, 0, True]], "constraint": None})
    return asked


@pytest.mark.parametrize("is_taken", [True, False], ids=["snapshot", "journal"])
def test_no_code_is_in_the_files(start, is_taken):
    first = start()
    constrained(first.asked)
    if is_taken:
        assert first.snapshots.take()
    found = (path for path in first.folder.path.rglob("*") if path.is_file())
    written = b"".join(path.read_bytes() for path in found)
    assert b"momentum" not in written  # of the optimizer's configuration
    assert b"doubled" not in written
    second = start()
    assert held(second.server) == held(first.server)
    second.asked.plan(cells=[1, 2])
    second.asked.push(0, [ones(2), ones(2)])
    # SGD with momentum: m ← 0.5 m − 0.5 g, v ← v + m; then the constraint.
    np.testing.assert_allclose(second.asked.value(1, (2,)), [2 * 0.625, 2 * 0.75])
    np.testing.assert_allclose(second.asked.value(2, (2,)), [0.5, 4.5])


def test_code_that_was_not_sent_is_missed_when_it_is_needed(start):
    first = start()
    constrained(first.asked)
    assert first.snapshots.take()
    second = start(code=()).asked
    np.testing.assert_array_equal(second.value(1, (2,)), [1.0, 1.0])
    second.plan(cells=[1])
    with pytest.raises(MissingCode):
        second.push(0, [ones(2)])


@pytest.mark.parametrize(
    ("plant", "error"), [(plant_in_manifest, OtherFormat), (plant_in_journal, OtherFormat)]
)
def test_planted_pickles_are_refused_and_nothing_runs(tmp_path, plant, error):
    first = Process(tmp_path / "server-0")
    trained(first)
    first.snapshots.take()
    first.die()
    (manifest,) = first.folder.path.glob("snapshot-*/state.json")
    plant(manifest, Planted(tmp_path / "it ran"))
    with pytest.raises(error):
        Process(tmp_path / "server-0", writer="bb", code=first.server.code.pickled())
    assert not (tmp_path / "it ran").exists()
