"""Worker processes: their shares without processes, then few tests with real ones."""

import collections
import contextlib
import gc
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.data._nodes.share import Share, shared
from replicax.data._nodes.workers import Job
from replicax.data._worker_pool import PacketIterator, packed, unpacked

from helpers import completed, since_now, wait_until

Dataset = rx.data.Dataset
PATH = (0,)


def plain(elements):
    return [jax.tree.map(lambda leaf: np.asarray(leaf).tolist(), e) for e in elements]


def in_turn(node, num, offset=0):
    """The elements of all shares, one of each after the other."""
    shares = [iter(Dataset(shared(node, Share(offset, num, i)))) for i in range(num)]
    found = []
    while True:
        for share in shares:
            try:
                found.append(next(share))
            except StopIteration:
                assert all(next(s, None) is None for s in shares), "the first to end is the end"
                return plain(found)


PIPELINES = {
    "map": lambda d: d.map(lambda x: x + 1),
    "batch": lambda d: d.batch(4),
    "map, batch, map": lambda d: d.map(lambda x: x + 1).batch(4).map(lambda x: x * 2),
    "drop_remainder": lambda d: d.batch(5, drop_remainder=True),
    "batch of batches": lambda d: d.batch(3, drop_remainder=True).batch(2),
    "padded_batch": lambda d: d.map(lambda x: np.arange(x % 3)).padded_batch(3),
    "take": lambda d: d.map(lambda x: x + 1).take(7).batch(2),
    "skip": lambda d: d.map(lambda x: x + 1).skip(5).batch(3).skip(1),
    "take of skip": lambda d: d.batch(2).skip(2).take(4).map(lambda x: x),
    "all": lambda d: d.map(lambda x: x).take(-1),
    "none": lambda d: d.map(lambda x: x).skip(-1),
    "shuffle": lambda d: d.shuffle(8, seed=3).map(lambda x: x).batch(3),
    "shuffle of elements": lambda d: d.map(lambda x: x).shuffle(8, seed=3).map(lambda x: x),
    "filter": lambda d: d.map(lambda x: x).filter(lambda x: x % 3 > 0).map(lambda x: x),
    "enumerate": lambda d: d.map(lambda x: x).enumerate().batch(2),
    "zip": lambda d: Dataset.zip((d.map(lambda x: x), d.shuffle(9, seed=1))).map(
        lambda x, y: x - y
    ),
    "repeat": lambda d: d.map(lambda x: x).repeat(2).batch(4),
    "flat_map": lambda d: d.flat_map(lambda x: Dataset.range(int(x) % 3)).batch(2),
    "prefetch": lambda d: d.map(lambda x: x).prefetch(2).batch(2),
    "threads": lambda d: d.map(lambda x: x + 1, num_parallel_calls=2).batch(2),
    "shard": lambda d: d.map(lambda x: x).shard(2, 1).batch(2),
}


@pytest.mark.parametrize("num", [1, 2, 3])
@pytest.mark.parametrize("name", PIPELINES)
def test_the_shares_in_turn_are_the_whole(name, num):
    dataset = PIPELINES[name](Dataset.range(23))
    expected = plain(dataset)
    for offset in (0, 1, 4):
        assert in_turn(dataset.node, num, offset) == expected[offset:]


def calls_of_shares(make):
    """For which numbers each of two shares calls the function of a pipeline."""
    found = []
    for index in range(2):
        calls = []
        node = make(Dataset.range(12), lambda x, calls=calls: calls.append(int(x)) or x).node
        list(Dataset(shared(node, Share(0, 2, index))))
        found.append(sorted(calls))
    return found


@pytest.mark.parametrize(
    ("make", "first"),
    [
        (lambda d, f: d.map(f), [0, 2, 4, 6, 8, 10]),
        (lambda d, f: d.map(f).batch(4), [0, 1, 2, 3, 8, 9, 10, 11]),
        (lambda d, f: d.map(f).batch(2).batch(2), [0, 1, 2, 3, 8, 9, 10, 11]),
        (lambda d, f: d.map(f).skip(1).take(6).prefetch(2), [1, 3, 5]),
        (lambda d, f: d.filter(lambda x: x > 3).map(f), [4, 6, 8, 10]),
        (lambda d, f: Dataset.zip((d, d.map(f))), [0, 2, 4, 6, 8, 10]),
    ],
)
def test_a_worker_calls_functions_for_its_share_only(make, first):
    mine, other = calls_of_shares(make)
    assert mine == first
    assert not set(mine) & set(other)


def test_an_error_has_the_number_of_the_element_in_the_whole():
    dataset = Dataset.range(20).map(lambda x: 1 // int(x - 13)).batch(4)
    with pytest.raises(rx.errors.MapFailed, match="for element 13"):
        list(dataset)
    with pytest.raises(rx.errors.MapFailed, match="for element 13"):
        list(Dataset(shared(dataset.node, Share(1, 2, 0))))


Point = collections.namedtuple("Point", "x y")


@pytest.mark.parametrize(
    "value",
    [
        3,
        {"a": np.arange(5, dtype=np.int8), "b": "text", "c": np.zeros((0, 3))},
        Point(np.arange(10_000.0), np.array(["x", b"y"], object)),
        (np.arange(2_000_000.0), np.asfortranarray(np.ones((300, 7), np.float32))),
        np.arange(10_000)[::2],
    ],
)
def test_what_was_packed_is_unpacked(value):
    leaves, tree = jax.tree.flatten(unpacked(packed(value)))
    assert tree == jax.tree.structure(value)
    for leaf, expected in zip(leaves, jax.tree.leaves(value), strict=True):
        np.testing.assert_array_equal(leaf, expected)
        assert np.asarray(leaf).dtype == np.asarray(expected).dtype
        assert not isinstance(leaf, np.ndarray) or leaf.flags.writeable


def packets(dataset):
    """What a worker that has everything to do sends."""
    job = Job(dataset.node, PATH, 0, 0, ((None, 0),))
    return map(unpacked, PacketIterator(cloudpickle.dumps(job), 0))


def test_a_small_position_goes_with_each_element_and_a_large_one_seldom():
    small = packets(Dataset.range(9).map(lambda x: x))
    assert [note is not None for _, _, note in (next(small) for _ in range(9))] == [True] * 9
    large = packets(Dataset.range(99).map(lambda x: np.zeros(1000)).shuffle(20, seed=0))
    notes = [note for _, _, note in (next(large) for _ in range(99))]
    assert 1 <= sum(note is not None for note in notes) < 10


def test_an_error_that_cannot_be_sent_is_described():
    class Odd(Exception):
        def __init__(self, a, b):
            super().__init__(a)

    def generate():
        yield 1
        raise Odd("what", "else")

    kinds = packets(Dataset.from_generator(generate))
    assert next(kinds)[0] == "value"
    kind, error, _ = next(kinds)
    assert (kind, type(error)) == ("error", rx.errors.DataError)
    assert "Odd: what." in str(error)
    assert next(kinds)[0] == "end"


def test_no_workers_is_here():
    dataset = Dataset.range(3)
    assert dataset.in_processes(0) is dataset


def test_a_cache_in_memory_comes_after_the_workers():
    with pytest.raises(rx.errors.UsageError, match=r"`cache\(\)` after"):
        Dataset.range(3).map(lambda x: x).cache().batch(2).in_processes(2)
    Dataset.range(3).cache().in_processes(2)  # rows that are in memory anyway
    Dataset.range(3).map(lambda x: x).in_processes(2).cache()


def test_the_spec_needs_no_processes(workers):
    dataset = Dataset.range(3).map(lambda x: x * 1.5).in_processes(2).map(lambda x: (x, x))
    assert dataset.element_spec == (rx.data.ArraySpec((), np.float64),) * 2
    assert len(dataset) == 3
    assert not workers()


def test_what_cannot_be_sent_is_an_error_before_anything_starts():
    lock = threading.Lock()
    with pytest.raises(rx.errors.UsageError, match="in_processes.*lock"):
        list(Dataset.range(3).map(lambda x: x if lock else x).in_processes(2))


def test_without_grain_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "replicax.data._worker_pool", None)
    with pytest.raises(rx.errors.UsageError, match=r"replicax\[data\]"):
        list(Dataset.range(3).in_processes(2))


def test_a_position_of_another_number_of_workers_is_a_count():
    cursor = Dataset.range(9).in_processes(3).node.open(PATH)
    cursor.set_state({"offset": 2, "taken": 3, "notes": [[4, 1], [4, 0]]})
    assert cursor.get_state() == {"offset": 5, "taken": 0, "notes": [[None, 0]] * 3}


@pytest.fixture
def workers():
    """The processes that this test has started and that still run."""
    return since_now(multiprocessing.active_children)


@pytest.fixture
def none_left(workers):
    return lambda: gc.collect() >= 0 and not workers()


def test_elements_order_and_positions_are_those_of_this_process(none_left):
    def work(x):
        return x, jnp.ones(2) * x, jax.devices()[0].platform, np.full((40, 50), x)

    assert jax.devices()  # JAX is in use before the workers start
    order = Dataset.range(25).shuffle(25, seed=1, reshuffle_each_iteration=False)
    expected = plain(order.map(work).batch(4))
    dataset = order.map(lambda x: (*work(x), os.getpid())).batch(4).in_processes(2)
    iterator = iter(dataset)
    found = [next(iterator) for _ in range(3)]
    state = pickle.loads(pickle.dumps(iterator.get_state()))
    found += list(iterator)
    assert plain(batch[:4] for batch in found) == expected
    workers = {int(pid) for batch in found for pid in batch[4]}
    assert len(workers) == 2
    assert os.getpid() not in workers
    again = iter(dataset)
    again.set_state(state)
    assert plain(batch[:4] for batch in again) == expected[3:]
    assert none_left()


def test_an_error_in_a_worker_is_that_of_this_process(none_left):
    dataset = Dataset.range(12).map(lambda x: 1 // int(x - 5)).batch(2)
    with pytest.raises(rx.errors.MapFailed) as here:
        list(dataset)
    iterator = iter(dataset.in_processes(2))
    with pytest.raises(rx.errors.MapFailed) as there:
        list(iterator)
    assert str(there.value) == str(here.value)
    assert "ZeroDivisionError" in there.value.__notes__[0]
    assert next(iterator).tolist() == [1, 0]  # as here: what follows the error can be read
    del iterator, here, there
    assert none_left()


def test_a_worker_that_is_killed_is_an_error_soon(workers, none_left):
    iterator = iter(Dataset.range(1000).map(lambda x: time.sleep(0.02) or x).in_processes(2))
    next(iterator)
    os.kill(workers()[0].pid, signal.SIGKILL)
    for _ in range(2):  # and it is not an end
        with pytest.raises(rx.errors.WorkerDied, match="exit code -9"):
            list(iterator)
    assert none_left()


def test_workers_that_are_stuck_end_with_the_iterator(none_left):
    stuck = Dataset.range(9).map(lambda x: time.sleep(1000 if x > 1 else 0) or x).in_processes(2)
    iterator = iter(stuck)
    assert [int(next(iterator)), int(next(iterator))] == [0, 1]
    del iterator
    assert none_left()


ORPHANS = """
import os, signal
from replicax.data import Dataset

if __name__ == "__main__":
    iterator = iter(Dataset.range(99).map(lambda x: os.getpid()).in_processes(2))
    print(next(iterator), next(iterator), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_workers_end_when_their_reader_is_killed(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(ORPHANS)
    pids = [int(pid) for pid in completed([sys.executable, program]).stdout.split()]
    assert len(pids) == 2
    wait_until(lambda: not any(map(is_running, pids)))


def is_running(pid):
    with contextlib.suppress(OSError):
        os.kill(pid, 0)
        return True
    return False
