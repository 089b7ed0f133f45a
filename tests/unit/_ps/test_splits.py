"""Each example once in an epoch, although workers come, die and go."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter

import pytest

from replicax._core.errors import UsageError
from replicax._ps.splits import Split, SplitProgress, SplitQueue

from lane_fakes import in_thread


def drain(queue, worker=0):
    """Read all that is left, one split after the other; give their epochs and numbers."""
    taken = []
    while split := queue.take(worker):
        taken.append((split.epoch, split.index))
        queue.done(worker, split)
    return taken


def test_splits_are_given_in_order_and_then_none():
    queue = SplitQueue(3)
    assert drain(queue) == [(0, 0), (0, 1), (0, 2)]
    assert queue.is_complete
    assert queue.take(1) is None


def test_epochs_follow_each_other_without_a_pause():
    queue = SplitQueue(2, epochs=2)
    taken = [queue.take(0) for _ in range(4)]  # none of them done
    assert taken == [Split(0, 0), Split(0, 1), Split(1, 0), Split(1, 1)]


def test_there_need_be_no_end():
    queue = SplitQueue(2, epochs=None)
    assert [queue.take(0).epoch for _ in range(7)] == [0, 0, 1, 1, 2, 2, 3]
    assert not queue.is_complete


def test_each_epoch_has_its_own_order_and_a_seed_repeats_it():
    orders = []
    for _ in range(2):
        taken = drain(SplitQueue(20, epochs=2, seed=3))
        assert sorted(taken) == [(epoch, i) for epoch in range(2) for i in range(20)]
        orders.append([[i for e, i in taken if e == epoch] for epoch in range(2)])
    assert orders[0] == orders[1]
    assert orders[0][0] != orders[0][1] != list(range(20))


def test_no_splits_or_no_epochs_is_the_end_at_once():
    for queue in (SplitQueue(0), SplitQueue(3, epochs=0)):
        assert queue.take(0) is None
        assert queue.is_complete


def test_who_finds_nothing_left_waits_for_what_is_out():
    queue = SplitQueue(1)
    split = queue.take(0)
    waiting = in_thread(lambda: queue.take(1))
    assert waiting.waits()
    assert queue.done(0, split)
    assert waiting.result() is None


def test_what_a_dead_worker_had_goes_to_who_waits():
    queue = SplitQueue(1)
    split = queue.take(0)
    waiting = in_thread(lambda: queue.take(1))
    assert waiting.waits()
    assert queue.lost(0) == [split]
    assert waiting.result() == split
    assert not queue.done(0, split)
    assert queue.done(1, split)
    assert queue.is_complete


def test_what_was_lost_is_the_next():
    queue = SplitQueue(4)
    first, second = queue.take(0), queue.take(0)
    queue.take(1)
    assert queue.lost(0) == [first, second]
    assert [queue.take(1), queue.take(1), queue.take(1)] == [first, second, Split(0, 3)]


def test_what_was_visited_is_not_visited_again():
    queue = SplitQueue(1)
    split = queue.take(0)
    assert queue.visit(0, split, 2, samples=10)
    assert queue.visit(0, split, 0, samples=10)
    assert not queue.visit(0, split, 2, samples=10)
    queue.lost(0)
    assert not queue.visit(0, split, 1, samples=10)
    again = queue.take(1)
    assert again == Split(0, 0, frozenset({0, 2}))
    assert queue.visit(1, again, 1, samples=5)
    assert queue.done(1, again)
    assert queue.progress == SplitProgress(done=1, out=0, samples=(25,))


def test_progress_is_counted_by_epoch():
    queue = SplitQueue(2, epochs=2)
    for _ in range(3):
        split = queue.take(0)
        queue.visit(0, split, 0, samples=4)
        queue.done(0, split)
    queue.take(1)
    assert queue.progress == SplitProgress(done=3, out=1, samples=(8, 4))


def test_workers_that_all_hold_what_they_have_are_told_that_there_is_no_more():
    queue = SplitQueue(2)
    mine, other = queue.take(0), queue.take(1)
    first = in_thread(lambda: queue.take(0, holding=True))
    assert first.waits()
    assert queue.take(1, holding=True) is None
    assert first.waits()  # worker 1 goes on with what it has now, and may die
    queue.done(1, other)
    assert first.result() is None
    assert queue.done(0, mine)


def test_if_one_of_them_dies_after_that_its_split_is_still_there():
    queue = SplitQueue(2)
    mine, other = queue.take(0), queue.take(1)
    waiting = [in_thread(lambda w=w: queue.take(w, holding=True)) for w in (0, 1)]
    queue.done(0, mine)
    queue.lost(1)
    results = [thread.result() for thread in waiting]
    assert other in results or queue.take(0) == other


def test_a_worker_alone_need_not_wait_for_itself():
    queue = SplitQueue(1)
    queue.take(0)
    assert queue.take(0, holding=True) is None
    assert not queue.is_complete


def test_closing_sends_away_who_waits():
    queue = SplitQueue(1)
    queue.take(0)
    waiting = in_thread(lambda: queue.take(1))
    assert waiting.waits()
    queue.close()
    assert waiting.result() is None
    queue.lost(0)
    assert queue.take(1) is None


def test_progress_is_saved_and_restored():
    queue = SplitQueue(3, epochs=2, seed=1)
    first, second = queue.take(0), queue.take(1)
    queue.visit(0, first, 0, samples=2)
    queue.done(0, first)
    queue.visit(1, second, 4, samples=3)
    saved = json.loads(json.dumps(queue.snapshot()))
    rest = [second, *(queue.take(0) for _ in range(4))]

    restored = SplitQueue(3, epochs=2, seed=1)
    restored.restore(saved)
    assert restored.progress == SplitProgress(done=1, out=0, samples=(5,))
    taken = [restored.take(7) for _ in range(5)]
    assert taken[0] == Split(second.epoch, second.index, frozenset({4}))
    assert taken[1:] == rest[1:]
    assert not restored.done(1, second)


def test_restoring_takes_splits_from_their_workers():
    queue = SplitQueue(2)
    start = queue.snapshot()
    split = queue.take(0)
    queue.restore(start)
    assert not queue.done(0, split)
    assert drain(queue) == [(0, 0), (0, 1)]


def test_progress_of_another_data_set_is_refused():
    saved = SplitQueue(3, seed=1).snapshot()
    for other in (SplitQueue(4, seed=1), SplitQueue(3)):
        with pytest.raises(
            UsageError, match=r"that it was saved of\. Received: num_splits=3 and seed=1, for a"
        ):
            other.restore(saved)


@pytest.mark.parametrize(
    ("splits", "epochs"), [(-1, 1), (0, None), (3, -1)], ids=["negative", "endless", "epochs"]
)
def test_a_number_of_splits_that_makes_no_sense_is_refused(splits, epochs):
    received = f"Received: num_splits={splits}, epochs={epochs}"
    with pytest.raises(UsageError, match=f"in splits, over a number of epochs. {received}"):
        SplitQueue(splits, epochs=epochs)


@pytest.mark.parametrize("seed", range(4))
def test_each_example_is_visited_once_although_workers_die(seed):
    queue, lock, visited = SplitQueue(30, epochs=2, seed=seed), threading.Lock(), Counter()
    draw = random.Random(seed)

    def dies():
        with lock:
            return draw.random() < 0.1

    def work(worker):
        while split := queue.take(worker):
            for element in range(5):
                if element in split.visited:
                    continue
                if dies():
                    queue.lost(worker)
                    break
                assert queue.visit(worker, split, element, samples=2)
                with lock:
                    visited[split.epoch, split.index, element] += 1
            else:
                assert queue.done(worker, split)

    workers = [in_thread(lambda worker=worker: work(worker)) for worker in range(4)]
    for worker in workers:
        worker.result()
    assert visited == Counter((e, s, i) for e in range(2) for s in range(30) for i in range(5))
    assert queue.progress == SplitProgress(done=60, out=0, samples=(300, 300))


@pytest.mark.parametrize("seed", range(3))
def test_nobody_waits_for_ever_with_batches_across_splits(seed):
    # 4 workers make batches of 4 from splits of 3; each confirms what a batch used after it.
    queue, draw = SplitQueue(17, seed=seed), random.Random(seed)
    counted = []

    def work(worker):
        held, rows = [], []
        while True:
            split = queue.take(worker, holding=bool(held))
            if split:
                held.append(split)
                rows += [(split, element) for element in range(3)]
            while len(rows) >= 4 or (rows and not split):
                counted.extend([queue.visit(worker, *row) for row in rows[:4]])
                rows = rows[4:]
                for done in [s for s in held if all(s != of for of, _ in rows)]:
                    held.remove(done)
                    queue.done(worker, done)
            if not split:
                return
            if draw.random() < 0.2:
                threading.Event().wait(0.001)

    workers = [in_thread(lambda worker=worker: work(worker)) for worker in range(4)]
    for worker in workers:
        worker.result()
    assert counted == [True] * 51
    assert queue.is_complete
