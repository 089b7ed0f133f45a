"""The two rules by which a batch is divided; numbers are pairs of the semantics' list B."""

from __future__ import annotations

import itertools

import pytest

from replicax._input.policy import split_batch, worker_batch_sizes


@pytest.mark.parametrize(
    ("rows", "replicas", "sizes"),
    [
        (9, 2, [5, 4]),  # 32
        (3, 2, [2, 1]),  # 34
        (6, 2, [3, 3]),  # 35
        (8, 3, [3, 3, 2]),
        (9, 4, [3, 3, 3, 0]),
        (3, 4, [1, 1, 1, 0]),
        (1, 2, [1, 0]),  # 56
        (0, 3, [0, 0, 0]),
        (7, 1, [7]),
    ],
)
def test_a_batch_is_cut_by_the_rounded_up_share(rows, replicas, sizes):
    assert split_batch(rows, replicas) == sizes


@pytest.mark.parametrize("replicas", range(1, 10))
def test_every_row_has_one_replica(replicas):
    for rows in range(40):
        sizes = split_batch(rows, replicas)
        assert len(sizes) == replicas
        assert sum(sizes) == rows
        assert min(sizes) >= 0
        assert max(sizes) == -(-rows // replicas)


def of_worker(worker, workers, batches):
    """Return the pieces that one worker of one replica keeps of range(n) in these batches."""
    pieces, start = [], 0
    for rows in batches:
        sizes = split_batch(rows, workers)
        begin = start + sum(sizes[:worker])
        pieces.append(list(range(begin, begin + sizes[worker])))
        start += rows
    return pieces


def test_two_workers_share_each_global_batch():
    twos = [2, 2, 2, 2, 1]
    assert of_worker(0, 2, twos) == [[0], [2], [4], [6], [8]]  # 38
    assert of_worker(1, 2, twos) == [[1], [3], [5], [7], []]  # 38
    assert of_worker(0, 2, [8, 6])[-1] == [8, 9, 10]  # 40
    assert of_worker(1, 2, [8, 6])[-1] == [11, 12, 13]  # 40
    assert of_worker(0, 2, [4, 4, 2]) == [[0, 1], [4, 5], [8]]  # 43
    assert of_worker(1, 2, [4, 4, 2]) == [[2, 3], [6, 7], [9]]  # 43
    assert of_worker(0, 2, [8, 8, 8]) == [[0, 1, 2, 3], [8, 9, 10, 11], [16, 17, 18, 19]]  # 44
    assert of_worker(1, 2, [8, 8, 8]) == [[4, 5, 6, 7], [12, 13, 14, 15], [20, 21, 22, 23]]  # 44


@pytest.mark.parametrize(
    ("batch", "workers", "replicas", "sizes"),
    [
        (7, 2, 2, [[2, 2, 2, 1], [2, 1, 2, 2]]),  # 28
        (3, 2, 1, [[2, 1], [1, 2]]),  # 28
        (5, 2, 2, [[2, 1, 1, 1], [1, 1, 2, 1]]),  # 28
        (9, 1, 2, [[5, 4]]),  # 29
        (1, 1, 2, [[1, 0]]),  # 29
        (10, 1, 3, [[4, 3, 3]]),  # 29
        (8, 2, 1, [[4, 4], [4, 4]]),  # 29
    ],
)
def test_a_worker_plans_its_pieces(batch, workers, replicas, sizes):
    planned = [worker_batch_sizes(batch, workers, replicas, worker) for worker in range(workers)]
    assert planned == sizes


@pytest.mark.parametrize(("workers", "replicas"), [(1, 1), (1, 4), (2, 2), (3, 1), (4, 8)])
def test_the_workers_plans_make_up_every_global_batch(workers, replicas):
    for batch in range(1, 40):
        plans = [worker_batch_sizes(batch, workers, replicas, w) for w in range(workers)]
        assert all(sum(plan) == batch for plan in plans)
        first_step = itertools.chain.from_iterable(plan[:replicas] for plan in plans)
        assert sum(first_step) == batch


def cut(rows, sizes):
    """Cut range(rows) into pieces of these sizes, in turn, as policy OFF does."""
    pieces, start, turn = [], 0, itertools.cycle(sizes)
    while start < rows:
        stop = min(start + next(turn), rows)
        pieces.append(list(range(start, stop)))
        start = stop
    return pieces


def test_planned_pieces_of_a_stream():
    two = worker_batch_sizes(3, 1, 2, 0)
    assert cut(8, two) == [[0, 1], [2], [3, 4], [5], [6, 7]]  # 34, OFF
    two = worker_batch_sizes(8, 1, 2, 0)
    assert cut(14, two)[-2:] == [[8, 9, 10, 11], [12, 13]]  # 35, OFF
    # 41, OFF: each of two workers reads everything, cut for it
    assert cut(12, worker_batch_sizes(8, 2, 1, 0)) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    assert cut(10, worker_batch_sizes(4, 2, 1, 1))[-1] == [8, 9]  # 43, OFF
