"""Which elements and in what order: take, skip, shard, repeat, concatenate, shuffle."""

from collections import Counter

import keras
import numpy as np
import pytest

import replicax as rx
from replicax.data._nodes.select import Shard

Dataset = rx.data.Dataset
UsageError = rx.errors.UsageError


def numbers(ds):
    return [int(x) for x in ds]


def through_elements(ds):
    """The same elements, but no longer row numbers."""
    return ds.map(lambda x: x)


def as_they_are(ds):
    return ds


both_ways = pytest.mark.parametrize("way", [as_they_are, through_elements])


class Counted:
    """A generator function that counts what was taken of it."""

    def __init__(self, size):
        self.size, self.taken = size, 0

    def __call__(self):
        for n in range(self.size):
            self.taken += 1
            yield n


@both_ways
@pytest.mark.parametrize(
    ("count", "first", "rest"),
    [
        (0, [], [0, 1, 2]),
        (2, [0, 1], [2]),
        (3, [0, 1, 2], []),
        (9, [0, 1, 2], []),
        (-1, [0, 1, 2], []),
    ],
)
def test_take_and_skip_divide_the_elements(way, count, first, rest):
    ds = way(Dataset.range(3))
    assert numbers(ds.take(count)) == first
    assert numbers(ds.skip(count)) == rest


def test_take_reads_no_more_than_it_gives():
    source = Counted(9)
    assert numbers(Dataset.from_generator(source).take(2)) == [0, 1]
    assert source.taken == 2


def test_skip_holds_one_element_at_a_time():
    alive = Counter()

    class Large(np.ndarray):
        def __del__(self):
            alive["now"] -= 1

    def make(x):
        alive["now"] += 1
        alive["most"] = max(alive["most"], alive["now"])
        return np.zeros(1).view(Large)

    assert len(list(Dataset.range(50).map(make).skip(49))) == 1
    assert alive["most"] <= 3


@both_ways
@pytest.mark.parametrize("read", [1, 2, 5, 50])
def test_shards_of_blocks_are_read_alike_in_any_portions(way, read):
    node = way(Dataset.range(11)).node
    parts = [numbers(Dataset(Shard(node, 2, n, 3)).batch(read).unbatch()) for n in range(2)]
    assert parts == [[0, 1, 2, 6, 7, 8], [3, 4, 5, 9, 10]]
    assert [Shard(node, 2, n, 3).cardinality for n in range(2)] == [6, 5]


def test_shards_of_blocks_of_concatenated_arrays():
    ds = Dataset.range(3).concatenate(Dataset.range(10, 13)).repeat(2)
    blocks = Dataset(Shard(ds.node, 2, 0, 2))
    assert blocks.batch(50).unbatch().cardinality() == rx.data.UNKNOWN_CARDINALITY
    assert [b.tolist() for b in blocks.batch(50)] == [[0, 1, 11, 12, 2, 10]]


def test_a_hint_of_a_shard_is_all_elements_until_a_strategy_fills_it_in():
    ds = Dataset.range(3).shard(rx.data.experimental.SHARD_HINT, rx.data.experimental.SHARD_HINT)
    assert (numbers(ds), len(ds)) == ([0, 1, 2], 3)


@both_ways
def test_repeats_of_repeats(way):
    assert numbers(way(Dataset.range(2)).repeat(2).take(3).repeat(2)) == [0, 1, 0, 0, 1, 0]
    assert numbers(way(Dataset.range(2)).repeat(0)) == []
    assert numbers(way(Dataset.range(2)).repeat(-1).take(3)) == [0, 1, 0]


@both_ways
def test_concatenated_data_sets_follow_each_other(way):
    ds = way(Dataset.range(2)).concatenate(Dataset.range(0)).concatenate(Dataset.range(7, 9))
    assert numbers(ds) == [0, 1, 7, 8]
    assert [b.tolist() for b in ds.batch(3)] == [[0, 1, 7], [8]]


def test_concatenated_arrays_are_gathered_in_one_order():
    low, high = np.arange(0, 5), np.arange(100, 107)
    first = Dataset.from_tensor_slices((low, low * 2))
    ds = first.concatenate(Dataset.from_tensor_slices((high, high * 2))).shuffle(12, seed=1)
    assert ds.node.table is not None
    (batch,) = ds.batch(12)
    assert sorted(batch[0].tolist()) == [*low, *high]
    assert (batch[1] == 2 * batch[0]).all()
    assert [(int(x), int(y)) for x, y in ds.as_numpy_iterator()] != list(zip(*batch, strict=True))


@both_ways
@pytest.mark.parametrize("size", [1, 2, 5, 19, 20, 21, 1000])
def test_a_shuffled_element_is_at_most_a_buffer_early(way, size):
    order = numbers(way(Dataset.range(20)).shuffle(size, seed=3))
    assert sorted(order) == list(range(20))
    assert all(element <= place + size - 1 for place, element in enumerate(order))
    assert (order == list(range(20))) == (size == 1)


@both_ways
@pytest.mark.parametrize("size", [4, 5])
def test_a_buffer_of_all_elements_gives_every_order_equally_often(way, size):
    ds = way(Dataset.range(4)).shuffle(size, seed=0)
    seen = Counter(tuple(batch.tolist()) for _ in range(1200) for batch in ds.batch(4))
    expected = 1200 / 24
    assert len(seen) == 24
    # Σ (observed − expected)² / expected is above 49.7 once in a thousand times.
    assert sum((n - expected) ** 2 / expected for n in seen.values()) < 49.7


def test_a_small_buffer_gives_each_of_its_elements_equally_often():
    # From a buffer of two, the first is 0 or 1; the second is the other, or the one that came in.
    ds = Dataset.range(3).shuffle(2, seed=0).batch(3)
    seen = Counter(tuple(batch.tolist()) for _ in range(1200) for batch in ds)
    orders = [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0)]
    assert sorted(seen) == orders
    assert sum((seen[order] - 300) ** 2 / 300 for order in orders) < 16.3


@both_ways
def test_each_epoch_and_each_turn_of_a_repeat_has_an_order_of_its_own(way):
    ds = way(Dataset.range(30)).shuffle(30, seed=1)
    assert numbers(ds) != numbers(ds)
    turns = numbers(ds.repeat(2))
    assert turns[:30] != turns[30:]
    assert sorted(turns[:30]) == sorted(turns[30:]) == list(range(30))


def test_data_sets_made_in_a_loop_go_on_to_the_next_order():
    ds = Dataset.range(30).shuffle(30, seed=1)  # as in tf.data
    orders = [numbers(ds), numbers(ds.take(30)), numbers(ds.with_options(rx.data.Options()))]
    orders += [numbers(ds.batch(5).unbatch()) for _ in range(2)]
    orders += [[int(x) for (x,) in Dataset.zip((ds,))] for _ in range(2)]
    assert len({tuple(order) for order in orders}) == 7


@both_ways
def test_without_reshuffling_all_passes_have_one_order(way):
    ds = way(Dataset.range(30)).shuffle(30, seed=1, reshuffle_each_iteration=False)
    assert numbers(ds) == numbers(ds)
    turns = numbers(ds.repeat(2))
    assert turns[:30] == turns[30:] == numbers(ds)


def test_an_order_without_a_seed_follows_from_the_seed_of_the_program():
    def order():
        return numbers(Dataset.range(30).shuffle(30))

    keras.utils.set_random_seed(7)
    first = [order(), order()]
    keras.utils.set_random_seed(7)
    assert [order(), order()] == first
    assert first[0] != first[1]


def test_data_sets_shuffled_with_one_seed_stay_in_step():
    ds = Dataset.range(9).shuffle(4, seed=2)
    pairs = list(Dataset.zip(ds, ds.map(lambda x: -x)))
    assert all(x == -y for x, y in pairs)


def test_a_batch_of_rows_in_memory_is_a_copy():
    rows = np.arange(20).reshape(10, 2)
    ds = Dataset.from_tensor_slices(rows)
    for batch in (*ds.batch(4), *ds.shuffle(3, seed=1).skip(2).repeat(2).shard(2, 1).batch(4)):
        batch[:] = -1
    assert (rows == np.arange(20).reshape(10, 2)).all()


@pytest.mark.parametrize("rows", [np.asfortranarray(np.arange(24).reshape(8, 3)),
                                  np.arange(48).reshape(8, 6)[:, ::2]])  # fmt: skip
def test_rows_of_arrays_that_are_not_contiguous(rows):
    (batch,) = Dataset.from_tensor_slices(rows).shuffle(8, seed=1).batch(8)
    assert sorted(batch.tolist()) == rows.tolist()
