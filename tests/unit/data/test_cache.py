"""Elements kept in memory from the first complete pass on."""

import numpy as np
import pytest

import replicax as rx
from replicax.data._node import drawn_seeds, with_seeds
from replicax.data._nodes.share import with_file_shard, with_hinted_shard

Dataset = rx.data.Dataset


def numbers(ds):
    return [int(x) for x in ds]


class Counted:
    """A function that counts its calls."""

    def __init__(self):
        self.calls = 0

    def __call__(self, x):
        self.calls += 1
        return x * 10


def test_after_a_complete_pass_nothing_is_made_again():
    function = Counted()
    ds = Dataset.range(4).map(function).cache()
    assert numbers(ds) == numbers(ds) == [0, 10, 20, 30]
    assert (function.calls, len(ds)) == (4, 4)
    assert [b.tolist() for b in ds.batch(3)] == [[0, 10, 20], [30]]
    assert function.calls == 4


def test_an_incomplete_pass_keeps_nothing():
    function = Counted()
    ds = Dataset.range(4).map(function).cache()
    iterator = iter(ds)
    next(iterator), next(iterator), next(iterator)
    assert numbers(ds) == [0, 10, 20, 30]
    assert function.calls == 7


def test_a_pass_that_failed_in_between_is_not_complete():
    failing = [True]

    def fails_once(x):
        if x == 2 and failing.pop():
            failing.append(False)
            raise OSError
        failing.append(failing[-1] if failing else False)
        return x

    ds = Dataset.range(4).map(fails_once).cache()
    iterator = iter(ds)
    with pytest.raises(rx.errors.MapFailed, match="element 2"):
        numbers(iterator)
    assert numbers(iterator) == [3]
    assert numbers(ds) == numbers(ds) == [0, 1, 2, 3]


@pytest.mark.parametrize("source", [Dataset.range, lambda n: Dataset.range(n).map(lambda x: x)])
def test_a_shuffle_before_it_is_kept_too(source):
    ds = source(20).shuffle(20, seed=1).cache()
    first, second = numbers(ds), numbers(ds)
    assert first == second != list(range(20))
    turns = numbers(ds.repeat(2))
    assert turns[:20] == turns[20:] == first
    assert numbers(source(20).shuffle(20, seed=1).cache().skip(5)) == first[5:]


def test_rows_in_memory_are_not_kept_again():
    ds = Dataset.from_tensor_slices((np.zeros((6, 2)), np.arange(6))).cache()
    assert ds.node.table is not None
    assert [len(labels) for _, labels in ds.shuffle(6).batch(4)] == [4, 2]


def test_rows_that_are_fetched_are_kept():
    class Rows:
        fetched = 0

        def __len__(self):
            return 5

        def __getitem__(self, row):
            Rows.fetched += 1
            return row

    ds = Dataset.from_source(Rows()).cache()
    assert numbers(ds) == numbers(ds) == list(range(5))
    assert Rows.fetched == 5


def test_a_function_cannot_change_what_is_kept():
    def in_place(x):
        x += 1
        return x

    ds = Dataset.range(3).map(lambda x: np.zeros(1)).cache()
    for _ in range(2):
        with pytest.raises(rx.errors.MapFailed, match="in_place.*read-only"):
            list(ds.map(in_place))
        assert [b.tolist() for b in ds.batch(3).map(in_place)] == [[[1], [1], [1]]]


def test_what_is_empty_is_kept_as_that():
    function = Counted()
    ds = Dataset.range(4).map(function).filter(lambda x: False).cache()
    assert numbers(ds) == numbers(ds) == []
    assert function.calls == 4


def test_parts_of_the_data_are_kept_apart(tmp_path):
    for name in "abcd":
        (tmp_path / name).write_text("")
    ds = Dataset.list_files(str(tmp_path / "*"), shuffle=False).map(lambda name: name[-1]).cache()
    parts = [Dataset(with_file_shard(ds.node, 2, index)) for index in range(2)]
    for _ in range(2):
        assert [list(part) for part in parts] == [["a", "c"], ["b", "d"]]
    assert list(ds) == ["a", "b", "c", "d"]
    again = with_file_shard(ds.node, 2, 1)
    assert again.memory is parts[1].node.memory, "the next pass finds what this one kept"


def test_hinted_parts_and_orders_are_kept_apart():
    ds = Dataset.range(6).map(lambda x: x).shard(-1, -1).cache()
    parts = [Dataset(with_hinted_shard(ds.node, 2, index)) for index in range(2)]
    assert [numbers(part) for part in parts] == [[0, 2, 4], [1, 3, 5]]
    assert numbers(ds) == list(range(6))
    ds = Dataset.range(20).map(lambda x: x).shuffle(20).cache()
    (drawn,) = drawn_seeds(ds.node)
    orders = {tuple(numbers(Dataset(with_seeds(ds.node, {drawn: seed})))) for seed in (1, 2, 1)}
    assert len(orders) == 2


def test_a_data_set_used_twice_is_given_one_seed():
    ds = Dataset.range(9).shuffle(9)
    node = Dataset.zip(ds.map(lambda x: x), ds).node
    (drawn,) = drawn_seeds(node)
    assert all(x == y for x, y in Dataset(with_seeds(node, {drawn: 5})))
    other = Dataset.zip(ds, Dataset.range(9).shuffle(9)).node
    seeds = dict(zip(drawn_seeds(other), (5, 6), strict=True))
    assert any(x != y for x, y in Dataset(with_seeds(other, seeds)))
