"""How workers divide a data set: the way that it allows, and the same batches for all."""

import numpy as np
import pytest

import replicax as rx
from replicax._core.errors import ClosureInputError, UsageError
from replicax._ps.data.splits import Division, Place, divisible

Dataset = rx.data.Dataset


def division_of(dataset, workers=2, num_splits=None):
    return Division.of(divisible(dataset), num_splits=num_splits, workers=workers)


def with_policy(dataset, policy):
    options = rx.data.Options()
    options.experimental_distribute.auto_shard_policy = policy
    return dataset.with_options(options)


def text_files(folder, counts):
    """Files with these numbers of lines; the lines say which file and which line."""
    for file, count in enumerate(counts):
        (folder / f"{file}.txt").write_text("".join(f"{file}.{n}\n" for n in range(count)))
    return [str(folder / f"{file}.txt") for file in range(len(counts))]


def test_data_whose_elements_can_be_gone_to_is_divided_into_runs():
    dataset = Dataset.range(100).shuffle(100, seed=1).map(lambda n: n * 2).batch(10)
    division = division_of(dataset)
    assert (division.by, division.parts, division.count) == ("runs", 1, 10)
    whole = [batch.tolist() for batch in dataset]  # epoch 0
    start, stop, batches = division.batches(division.agreed(dataset, 0), 0, Place(0, 4, 7))
    assert (start, stop) == (4, 7)
    assert [batch.tolist() for batch in batches] == whole[4:7]


def test_only_the_elements_of_a_run_are_made():
    made = []
    pairs = Dataset.zip(Dataset.range(12), Dataset.range(20).skip(5).map(lambda n: n))
    noted = pairs.map(lambda a, b: made.append(int(a)) or (a, b))
    dataset = noted.skip(1).take(9).batch(2).prefetch(1)
    division = division_of(dataset)
    assert division.by == "runs"
    _, _, batches = division.batches(division.agreed(dataset, 0), 0, Place(0, 1, 3))
    assert [[part.tolist() for part in batch] for batch in batches] == [
        [[3, 4], [8, 9]],
        [[5, 6], [10, 11]],
    ]
    assert made == [3, 4, 5, 6]


@pytest.mark.parametrize(
    ("dataset", "count"),
    [
        (Dataset.range(40).map(lambda n: n).shuffle(8, seed=1).batch(4), 10),
        (Dataset.range(40).filter(lambda n: n % 2 == 0).batch(4), None),
        ([np.zeros(2), np.ones(2)], 2),
    ],
)
def test_data_that_has_to_be_read_in_order_is_read_by_all(dataset, count):
    division = division_of(dataset)
    assert (division.by, division.count) == ("turn", count)
    node = division.agreed(divisible(dataset), 0)
    start, stop, batches = division.batches(node, 0, Place(0, 1, 2))
    assert (start, stop) == (0, None)
    assert len(list(batches)) == len(list(divisible(dataset)))


def test_data_without_end_has_splits_without_end():
    division = division_of(Dataset.range(4).repeat().batch(3))
    assert (division.by, division.count) == ("runs", None)


def test_files_are_parts_if_there_are_enough(tmp_path):
    names = text_files(tmp_path, [3, 0, 5])
    dataset = rx.data.TextLineDataset(names).batch(2)
    division = division_of(dataset, workers=2)
    assert (division.by, division.parts, division.count) == ("files", 3, None)
    node = division.agreed(dataset, 0)
    lines = [
        line
        for part in range(3)
        for batch in division.batches(node, 0, Place(part, 0, None))[2]
        for line in batch
    ]
    assert sorted(lines) == sorted(f"{f}.{n}" for f, k in enumerate([3, 0, 5]) for n in range(k))
    assert division_of(dataset, workers=4).by == "turn"
    assert division_of(dataset, workers=2, num_splits=2).parts == 2
    assert division_of(with_policy(dataset, "DATA")).by == "turn"
    counted = with_policy(Dataset.list_files(names, shuffle=False).batch(1), "FILE")
    assert division_of(counted).by == "files"


def test_a_hint_leaves_all_batches_to_be_given_out():
    hint = rx.data.experimental.SHARD_HINT
    dataset = with_policy(Dataset.range(6).shard(hint, hint).batch(2), "HINT")
    division = division_of(dataset, num_splits=4)
    assert division.by != "files" and division.parts == 1
    _, _, batches = division.batches(division.agreed(dataset, 0), 0, Place(0, 0, 3))
    assert [batch.tolist() for batch in batches] == [[0, 1], [2, 3], [4, 5]]


def test_seeds_that_nobody_gave_are_those_of_the_coordinator():
    def made():
        return Dataset.range(30).shuffle(30).map(lambda n: n, deterministic=False).batch(5)

    mine, theirs = made(), made()
    division = division_of(mine)
    node, other = division.agreed(mine, 0), division.agreed(theirs, 1)
    for epoch in (0, 1):
        first, second = (
            [b.tolist() for b in division.batches(n, epoch, Place(0, 0, 6))[2]]
            for n in (node, other)
        )
        assert first == second


def test_a_worker_that_makes_another_data_set_is_found_out():
    division = division_of(Dataset.range(10).batch(2))
    for other in (Dataset.range(12).batch(2), Dataset.range(10).shuffle(3).batch(2)):
        with pytest.raises(ClosureInputError, match="worker 1.*on the coordinator"):
            division.agreed(other, 1)


def test_what_each_worker_might_read_otherwise_cannot_be_shared():
    def elements():
        yield from range(3)

    for made in (elements(), Dataset.from_generator(elements).batch(2), object()):
        with pytest.raises(UsageError, match='shard="off"'):
            divisible(made)
