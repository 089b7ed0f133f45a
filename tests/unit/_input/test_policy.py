"""Which policy holds, the plan of who reads what, and the rules by which a batch is divided.

Numbers in comments are pairs of the semantics' list B.
"""

import itertools

import pytest

import replicax as rx
from replicax._input.policy import plan_shards, split_batch, worker_batch_sizes
from replicax.data import AutoShardPolicy, Dataset
from replicax.data._nodes.files import FileList, FileRecords
from replicax.data._nodes.share import with_file_shard
from replicax.data.experimental import SHARD_HINT

AUTO, DATA, FILE = AutoShardPolicy.AUTO, AutoShardPolicy.DATA, AutoShardPolicy.FILE
FILES = Dataset(FileList(("a", "b", "c"))).batch(5)
NUMBERS = Dataset.range(9).batch(5)
HINTED = Dataset.range(9).shard(SHARD_HINT, SHARD_HINT).batch(5)


def plan(dataset, asked, workers=2, replicas=1):
    return plan_shards(dataset.node, asked, workers=workers, replicas=replicas)


@pytest.mark.parametrize(
    ("dataset", "workers", "expected"),
    [(FILES, 1, FILE), (FILES, 3, FILE), (NUMBERS, 1, DATA), (NUMBERS, 2, DATA)],
)
def test_auto_is_file_where_there_are_enough_files(dataset, workers, expected):
    assert plan(dataset, AUTO, workers).policy is expected


def test_falling_back_is_said():
    with pytest.warns(UserWarning, match=r"keeps its part: only 3 file\(s\) for 4 workers"):
        plan(FILES, AUTO, workers=4)
    plan(FILES, AUTO, workers=3)
    plan(NUMBERS, AUTO, workers=3)


def test_no_files_for_the_file_policy():
    with pytest.raises(rx.errors.UsageError, match="no files"):
        plan(NUMBERS, FILE, workers=1)


def test_a_plan_does_not_list_thousands_of_files():
    many = Dataset(FileList(tuple(f"f{i}" for i in range(9)))).batch(5)
    assert "reads f0, f2, f4, … (5 files); first" in str(plan(many, AUTO))


def test_too_few_files_for_the_file_policy():
    with pytest.raises(rx.errors.UsageError, match="AutoShardPolicy.FILE has"):
        plan(FILES, FILE, workers=4)


def test_a_hint_that_is_nowhere_is_off():
    assert plan(FILES, AutoShardPolicy.HINT).policy is AutoShardPolicy.OFF
    assert plan(HINTED, AutoShardPolicy.HINT).policy is AutoShardPolicy.HINT


@pytest.mark.parametrize("asked", [DATA, AutoShardPolicy.OFF])
def test_what_is_asked_for_holds(asked):
    assert plan(FILES, asked).policy is asked


def test_a_plan_for_files():
    assert str(plan(FILES, AUTO)) == (
        "policy AUTO -> FILE: 3 files for 2 worker(s)\n"
        "global batch of 5 rows\n"
        "worker 0 reads a, c; first step 3 rows\n"
        "worker 1 reads b; first step 2 rows"
    )


def test_a_plan_for_several_replicas():
    assert str(plan(NUMBERS, DATA, workers=2, replicas=2)) == (
        "policy DATA: as the options say\n"
        "global batch of 5 rows\n"
        "worker 0 reads all batches, keeps its part; first step 2 + 2 rows\n"
        "worker 1 reads all batches, keeps its part; first step 1 + 0 rows"
    )


def test_a_plan_without_a_known_batch_size():
    assert str(plan(NUMBERS.map(lambda x: x), AutoShardPolicy.OFF)) == (
        "policy OFF: as the options say\n"
        "global batch of unknown size\n"
        "worker 0 reads all of the data\n"
        "worker 1 reads all of the data"
    )
    assert "shard 1 of 2" in str(plan(HINTED, AutoShardPolicy.HINT))


class Letters:
    """A file format: a file holds the letters of its name."""

    def records(self, path, start):
        for position in range(start or 0, len(path)):
            yield path[position], position + 1


@pytest.mark.parametrize("method", ["flat_map", "interleave"])
def test_files_that_a_function_reads_are_files(method):
    names = Dataset.from_tensor_slices(["ab", "cd", "ef"])
    records = getattr(names, method)(lambda name: Dataset(FileRecords((name,), Letters())))
    assert plan(records.batch(2), AUTO).reads == ("ab, ef", "cd")
    assert sorted(Dataset(with_file_shard(records.node, 2, 0))) == ["a", "b", "e", "f"]


def test_names_that_a_function_does_not_read_are_no_files():
    names = Dataset.from_tensor_slices(["ab", "cd"])
    other = names.flat_map(lambda name: Dataset.from_tensor_slices(list(name)))
    numbers = Dataset.range(2).flat_map(Dataset.range)
    for dataset in (other, numbers):
        assert plan(dataset.batch(2), AUTO).policy is DATA


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
