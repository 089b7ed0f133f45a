"""Positions, and what holds for every pipeline: random ones, read in different ways."""

from __future__ import annotations

import pickle
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import replicax as rx
from replicax.data._node import Feed

Dataset = rx.data.Dataset

# Pipelines are functions, so that a test can make an equal data set again.
SOURCES = {
    "range": Dataset.range,
    "array": lambda n: Dataset.from_tensor_slices(np.arange(n)),
    "generator": lambda n: Dataset.from_generator(lambda: iter(np.arange(n))),
    "object": lambda n: Dataset.from_source(np.arange(n).tolist()).map(np.int64),
}


def twice(x):
    return Dataset.from_tensors(x).repeat(2)


def some(x):
    """As many numbers as the last digit of x says."""
    return Dataset.range(x, x + x % 3)


# Transformations with two numbers from 1 to 4. The elements stay whole numbers.
PERMUTING = {  # every element once, in some order
    "shuffle": lambda ds, n, m: ds.shuffle(3 * n, m, n > 2),
    "cache": lambda ds, n, m: ds.cache(),
    "prefetch": lambda ds, n, m: ds.prefetch(n),
    "map": lambda ds, n, m: ds.map(lambda x: x),
    "threads": lambda ds, n, m: ds.map(lambda x: x, n),
    "batch": lambda ds, n, m: ds.batch(n).unbatch(),
    "map batches": lambda ds, n, m: ds.batch(n).map(np.flip).unbatch(),
    "shuffle batches": lambda ds, n, m: ds.batch(n).shuffle(3, m).unbatch(),
    "rebatch": lambda ds, n, m: ds.batch(n).rebatch([m, 1]).unbatch(),
    "padded": lambda ds, n, m: ds.padded_batch(n).unbatch(),
    "enumerate": lambda ds, n, m: ds.enumerate(n).map(lambda number, x: x),
    "window": lambda ds, n, m: ds.window(n).flat_map(lambda window: window),
    "interleave": lambda ds, n, m: ds.interleave(Dataset.from_tensors, n, m),
}
OTHERS = {
    "take": lambda ds, n, m: ds.take(3 * n),
    "skip": lambda ds, n, m: ds.skip(n),
    "shard": lambda ds, n, m: ds.shard(n, n - 1),
    "repeat": lambda ds, n, m: ds.repeat(n - 1),
    "concatenate": lambda ds, n, m: ds.concatenate(ds.skip(n)),
    "zip": lambda ds, n, m: Dataset.zip(ds.skip(n), ds).map(np.add),
    "filter": lambda ds, n, m: ds.filter(lambda x: x % (n + 1) != 0),
    "take_while": lambda ds, n, m: ds.take_while(lambda x: x != 7 - n),
    "scan": lambda ds, n, m: ds.scan(np.int64(0), lambda s, x: (s + x, s + x)),
    "flat_map": lambda ds, n, m: ds.flat_map(some),
    "turns": lambda ds, n, m: ds.interleave(twice, n, m, num_parallel_calls=m),
    "windows": lambda ds, n, m: ds.window(n, m, 2).flat_map(lambda w: w.batch(2)).unbatch(),
    "whole batches": lambda ds, n, m: ds.batch(n, drop_remainder=True).unbatch(),
    "sample": lambda ds, n, m: Dataset.sample_from_datasets([ds, ds.skip(1)], [1, 2], m, n > 2),
    "choose": lambda ds, n, m: Dataset.choose_from_datasets([ds, ds.skip(n)], CHOICES, m > 2),
}
CHOICES = Dataset.range(2).repeat(5)
ALL = PERMUTING | OTHERS


@dataclass
class Pipeline:
    """A source and what is done to it; called, a data set."""

    source: str
    size: int
    steps: list[tuple[str, int, int]]

    def __call__(self, through=lambda ds: ds):
        ds = through(SOURCES[self.source](self.size))
        for name, n, m in self.steps:
            ds = (PERMUTING | OTHERS)[name](ds, n, m)
        return ds


def pipelines(names, depth=4):
    numbers = st.integers(1, 4)
    steps = st.lists(st.tuples(st.sampled_from(sorted(names)), numbers, numbers), max_size=depth)
    return st.builds(Pipeline, st.sampled_from(sorted(SOURCES)), st.integers(0, 12), steps)


def epoch(ds):
    return [int(x) for x in ds]


@settings(max_examples=150)
@given(pipelines(ALL), st.integers(0, 40))
def test_a_saved_position_gives_the_rest_and_then_the_next_epoch(pipeline, position):
    original = pipeline()
    first, second = epoch(original), epoch(original)
    position = min(position, len(first))

    iterator = iter(pipeline())
    taken = [int(next(iterator)) for _ in range(position)]
    state = pickle.loads(pickle.dumps(iterator.get_state()))
    assert taken + epoch(iterator) == first, "to note a position changes nothing"

    again = pipeline()
    iterator = iter(again)
    iterator.set_state(state)
    assert epoch(iterator) == first[position:]
    assert epoch(again) == second


@settings(max_examples=100)
@given(pipelines(ALL), st.integers(0, 20))
def test_a_position_in_the_second_epoch_is_found_again(pipeline, position):
    original = pipeline()
    epoch(original)
    iterator = iter(original)
    taken = [x for x, _ in zip(iterator, range(position), strict=False)]
    state = pickle.loads(pickle.dumps(iterator.get_state()))
    rest, third = epoch(iterator), epoch(original)

    again = pipeline()
    iterator = iter(again)
    iterator.set_state(state)
    assert (len(taken), epoch(iterator), epoch(again)) == (len(taken), rest, third)


@settings(max_examples=150)
@given(pipelines(ALL))
def test_row_numbers_and_elements_take_the_same_way(pipeline):
    rows, elements = pipeline(), pipeline(lambda ds: ds.map(lambda x: x))
    for _ in range(2):
        assert epoch(rows) == epoch(elements)


@settings(max_examples=100)
@given(pipelines(ALL), st.integers(1, 9))
def test_elements_do_not_depend_on_how_many_are_read_at_a_time(pipeline, count):
    ds = pipeline()
    feed, found = Feed(pipeline().node, (0,)), []
    while elements := feed.elements(count):
        found += elements
    assert [int(x) for x in found] == epoch(ds)


@settings(max_examples=100)
@given(pipelines(ALL), st.integers(1, 9))
def test_batches_are_the_elements_in_groups(pipeline, count):
    rows = epoch(pipeline())
    batches = [batch.tolist() for batch in pipeline().batch(count)]
    assert batches == [rows[start : start + count] for start in range(0, len(rows), count)]


@settings(max_examples=100)
@given(pipelines(ALL), st.integers(0, 20))
def test_skipping_is_reading(pipeline, count):
    assert epoch(pipeline().skip(count)) == epoch(pipeline())[count:]


@settings(max_examples=100)
@given(pipelines(PERMUTING))
def test_no_element_is_lost_or_repeated_by_what_orders_them(pipeline):
    ds = pipeline()
    for _ in range(2):
        assert sorted(epoch(ds)) == list(range(pipeline.size))


@settings(max_examples=60)
@given(pipelines(ALL, depth=3), st.integers(1, 4))
def test_shards_divide_the_elements(pipeline, shards):
    parts = [epoch(pipeline().shard(shards, index)) for index in range(shards)]
    assert Counter(sum(parts, [])) == Counter(epoch(pipeline()))


@settings(max_examples=100)
@given(pipelines(ALL))
def test_cardinality_is_the_number_of_elements_or_unknown(pipeline):
    ds = pipeline()
    assert ds.cardinality() in (len(epoch(ds)), rx.data.UNKNOWN_CARDINALITY)


def test_among_arrays_in_memory_a_position_is_a_number():
    ds = Dataset.from_tensor_slices(np.zeros((50, 9))).shuffle(50, seed=1).repeat().batch(4)
    iterator = iter(ds)
    for _ in range(20):
        next(iterator)
    assert iterator.get_state() == {
        "pipelines": ["Batch(Repeat(Shuffle(Slices)))"],
        "epoch": 0,
        "seeds": [[]],
        "position": 80,
    }


def test_a_position_keeps_what_waits_in_a_shuffle_buffer():
    ds = Dataset.from_generator(lambda: iter("abcdef")).shuffle(3, seed=1)
    iterator = iter(ds)
    taken = [next(iterator), next(iterator)]
    position = iterator.get_state()["position"]
    assert sorted(taken + position["buffer"]) == list("abcde")


def test_a_position_does_not_change_when_reading_goes_on():
    ds = Dataset.from_generator(lambda: iter(np.arange(8).reshape(2, 4))).unbatch()
    iterator = iter(ds)
    next(iterator)
    state = iterator.get_state()
    before = pickle.dumps(state)
    rest = epoch(iterator)
    assert pickle.dumps(state) == before
    again = iter(ds)
    again.set_state(state)
    assert epoch(again) == rest == [1, 2, 3, 4, 5, 6, 7]


def doubled(x):
    x *= 2  # in place
    return x


@pytest.mark.parametrize(
    "made",
    [
        lambda rows: rows.shuffle(3, seed=1).map(doubled),
        lambda rows: rows.batch(3).unbatch().map(doubled),
        lambda rows: rows.map(doubled, num_parallel_calls=2),
        lambda rows: rows.scan(np.zeros(1), lambda s, x: (s.__iadd__(x), s.copy())),
    ],
    ids=["shuffle", "unbatch", "threads", "scan"],
)
def test_functions_that_work_in_place_change_no_position_and_no_later_pass(made):
    dataset = made(Dataset.from_generator(lambda: (np.full(1, float(n)) for n in range(9))))
    iterator = iter(dataset)
    next(iterator), next(iterator)
    state = iterator.get_state()
    rest = [row.tolist() for row in iterator]
    for _ in range(2):
        iterator.set_state(state)
        assert [row.tolist() for row in iterator] == rest


def test_a_scan_that_adds_in_place_begins_each_pass_anew():
    sums = Dataset.range(3).scan(np.zeros(1, int), lambda s, x: (s.__iadd__(x), s.copy()))
    assert [int(n[0]) for n in sums] == [int(n[0]) for n in sums] == [0, 1, 3]


@pytest.mark.parametrize(("before", "after"), [(3, None), (None, 3)])
def test_a_position_holds_for_another_number_of_threads(before, after):
    def rows(calls):
        return iter(Dataset.range(9).map(lambda x: x, num_parallel_calls=calls))

    iterator = rows(before)
    next(iterator), next(iterator)
    again = rows(after)
    again.set_state(iterator.get_state())
    next(again)
    third = rows(before)
    third.set_state(again.get_state())
    assert epoch(third) == [3, 4, 5, 6, 7, 8]


def test_seeds_that_nobody_gave_in_a_function_follow_from_one_in_the_position():
    def shuffled(n):
        return Dataset.range(10 * int(n), 10 * int(n) + 10).shuffle(10)

    def rows():
        return Dataset.range(3).interleave(shuffled, cycle_length=2)

    dataset, other = rows(), rows()
    iterator = iter(dataset)
    taken = [int(next(iterator)) for _ in range(12)]
    again = iter(other)
    again.set_state(iterator.get_state())
    assert sorted(taken + epoch(again)) == list(range(30))
    assert epoch(dataset) == epoch(other) != epoch(dataset)


def test_elements_of_any_kind_are_kept_in_a_position():
    rows = (
        {"text": ["a", "b", "c", "d"], "raw": [b"\0", b"1", b"2\0", b"3"]},
        [1.5, 2.5, 3.5, 4.5],
    )
    ds = Dataset.from_tensor_slices(rows).map(lambda x, y: (x, y, None)).shuffle(2, seed=4)
    expected = list(ds)
    again = Dataset.from_tensor_slices(rows).map(lambda x, y: (x, y, None)).shuffle(2, seed=4)
    iterator = iter(again)
    next(iterator)
    iterator.set_state(pickle.loads(pickle.dumps(iterator.get_state())))
    assert list(iterator) == expected[1:]


def test_an_order_that_nobody_gave_a_seed_goes_on_in_another_process():
    def made():
        left = Dataset.range(30).shuffle(30)
        return Dataset.sample_from_datasets([left, Dataset.range(100, 130).shuffle(8)])

    first, second = made(), made()
    assert epoch(first) != epoch(second), "each draws seeds of its own"
    iterator = iter(first)
    next(iterator)
    state = pickle.loads(pickle.dumps(iterator.get_state()))
    again = iter(second)
    again.set_state(state)
    assert epoch(again) == epoch(iterator)
    assert epoch(second) == epoch(first), "and so do the epochs that follow"
    assert pickle.dumps(iter(second).get_state()["seeds"]) == pickle.dumps(state["seeds"])


def test_a_position_of_another_pipeline_is_refused():
    state = iter(Dataset.range(9).batch(2)).get_state()
    with pytest.raises(rx.errors.UsageError, match="Shuffle"):
        iter(Dataset.range(9).shuffle(3).batch(2)).set_state(state)


def test_an_iterator_is_read_by_fit_from_where_it_is():
    iterator = iter(Dataset.range(6).batch(2))
    next(iterator)
    assert iterator.num_batches is None
    assert [batch.tolist() for batch in iterator.host_batches()] == [[2, 3], [4, 5]]
    assert [batch.tolist() for batch in iterator.host_batches()] == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize("distributed", [False, True])
def test_an_iterator_that_fit_has_read_ahead_is_for_fit_alone(distributed):
    dataset = Dataset.range(8).batch(2)
    if distributed:
        dataset = rx.MirroredStrategy(["CPU:0"]).experimental_distribute_dataset(dataset)
    iterator = iter(dataset)
    next(iterator)
    state = iterator.get_state()
    assert next(iterator.host_batches()).tolist() == [2, 3]
    for use in (iterator.get_state, lambda: next(iterator)):
        with pytest.raises(rx.errors.UsageError, match="read ahead"):
            use()
    iterator.set_state(state)
    assert [batch.tolist() for batch in iterator.host_batches()] == [[2, 3], [4, 5], [6, 7]]
