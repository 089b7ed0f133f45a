"""Several data sets as one: zip, flat_map, interleave, sample_from_datasets, choose_from_datasets.

Where the comment says so, the values were recorded from tf.data 2.21.
"""

from collections import Counter

import jax
import numpy as np
import pytest

import replicax as rx

Dataset = rx.data.Dataset
UsageError = rx.errors.UsageError


def numbers(ds):
    return [int(x) for x in ds]


def through_elements(ds):
    """The same elements, but no longer row numbers."""
    return ds.map(lambda x: x)


both_ways = pytest.mark.parametrize("way", [lambda ds: ds, through_elements])


def listed(ds):
    return [jax.tree.map(int, element) for element in ds]


@both_ways
def test_zipped_elements_end_with_the_shortest(way):  # as tf.data
    a, b = way(Dataset.range(2)), way(Dataset.range(10, 13))
    assert listed(Dataset.zip(a, b)) == listed(Dataset.zip((a, b))) == [(0, 10), (1, 11)]
    assert listed(Dataset.zip(b, a).batch(5).unbatch()) == [(10, 0), (11, 1)]
    assert listed(Dataset.zip(a.repeat(), b)) == [(0, 10), (1, 11), (0, 12)]


@both_ways
def test_zip_takes_a_nest(way):  # as tf.data
    one = way(Dataset.range(2))
    assert listed(Dataset.zip(one)) == [0, 1]
    assert listed(Dataset.zip((one,))) == [(0,), (1,)]
    nest = {"b": one, "a": (one.skip(1), Dataset.range(4))}
    assert listed(Dataset.zip(nest)) == [{"b": 0, "a": (1, 0)}]


def test_zipped_arrays_stay_in_memory_through_a_shuffle():
    x, y = np.arange(20.0).reshape(10, 2), np.arange(10)
    pairs = Dataset.zip(Dataset.from_tensor_slices(x), Dataset.from_tensor_slices({"y": y}))
    ds = Dataset.zip(pairs.concatenate(pairs), Dataset.range(20)).shuffle(20, seed=1)
    assert ds.node.table is not None
    (batch,) = ds.batch(20)
    (rows, labels), number = batch
    assert sorted(number) == list(range(20))
    assert (labels["y"] == number % 10).all()
    assert (rows == x[number % 10]).all()


def up_to(x):
    return Dataset.from_tensors(x).repeat(x + 1)


def tens(x):
    return Dataset.range(x * 10, x * 10 + x)


@pytest.mark.parametrize("ahead", [None, 2])
@pytest.mark.parametrize(
    ("function", "cycle", "block", "expected"),
    [  # as tf.data
        (up_to, 1, 1, [0, 1, 1, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 4]),
        (up_to, 2, 1, [0, 1, 1, 2, 2, 3, 2, 3, 3, 4, 3, 4, 4, 4, 4]),
        (up_to, 2, 2, [0, 1, 1, 2, 2, 2, 3, 3, 4, 4, 3, 3, 4, 4, 4]),
        (up_to, 3, 1, [0, 1, 2, 1, 2, 3, 2, 3, 4, 3, 4, 3, 4, 4, 4]),
        (up_to, 3, 2, [0, 1, 1, 2, 2, 3, 3, 2, 3, 3, 4, 4, 4, 4, 4]),
        (up_to, 4, 3, [0, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 3, 4, 4]),
        (tens, 2, 1, [10, 20, 21, 30, 31, 40, 32, 41, 42, 43]),
        (tens, 2, 2, [10, 20, 21, 30, 31, 32, 40, 41, 42, 43]),
        (tens, 3, 2, [10, 20, 21, 30, 31, 40, 41, 32, 42, 43]),
    ],
)
def test_data_sets_take_turns(function, cycle, block, expected, ahead):
    ds = Dataset.range(5).interleave(function, cycle, block, num_parallel_calls=ahead)
    assert numbers(ds) == numbers(ds.batch(7).unbatch()) == expected
    if cycle == 1:
        assert numbers(Dataset.range(5).flat_map(function)) == expected


def test_no_more_data_sets_are_open_than_take_turns():
    opened = []

    def function(x):
        opened.append(int(x))
        return Dataset.range(2)

    iterator = iter(Dataset.range(100).interleave(function, cycle_length=3))
    for _ in range(4):
        next(iterator)
    assert opened == [0, 1, 2]


def test_data_sets_without_elements_are_passed_over():
    assert numbers(Dataset.range(50).flat_map(lambda x: Dataset.range(0))) == []
    assert numbers(Dataset.range(50).interleave(lambda x: Dataset.range(x // 49))) == [0]


def test_data_sets_of_one_function_are_shuffled_differently():
    ds = Dataset.range(4).flat_map(lambda x: Dataset.range(20).shuffle(20, seed=1).batch(20))
    orders = {tuple(batch.tolist()) for batch in ds}
    assert len(orders) == 4


# sample_from_datasets

TENS = [Dataset.range(0, 10), Dataset.range(10, 20), Dataset.range(20, 30)]


def test_all_elements_of_all_data_sets_are_drawn_each_in_order():
    drawn = numbers(Dataset.sample_from_datasets(TENS, [0.5, 0.3, 0.2], seed=1))
    assert sorted(drawn) == list(range(30)) != drawn
    assert [x for x in drawn if x < 10] == list(range(10))


def test_data_sets_are_drawn_by_their_weights():
    endless = [Dataset.from_tensors(n).repeat() for n in range(3)]
    ds = Dataset.sample_from_datasets(endless, [5, 3, 2], seed=1)
    seen = Counter(numbers(ds.take(1000)))
    # Σ (observed − expected)² / expected is above 13.8 once in a thousand times.
    assert sum((seen[n] - e) ** 2 / e for n, e in enumerate([500, 300, 200])) < 13.8


def test_a_data_set_without_weight_is_not_drawn():
    assert numbers(Dataset.sample_from_datasets(TENS[:2], [0, 1])) == list(range(10, 20))


def test_sampling_may_stop_at_the_first_end():
    ds = Dataset.sample_from_datasets(
        [Dataset.range(2), TENS[1].repeat()], seed=1, stop_on_empty_dataset=True
    )
    drawn = numbers(ds)
    assert drawn.count(0) == drawn.count(1) == 1


def test_each_pass_draws_anew_or_not():
    def passes(again):
        ds = Dataset.sample_from_datasets(TENS, seed=1, rerandomize_each_iteration=again)
        return numbers(ds), numbers(ds)

    first, second = passes(True)
    assert first != second
    first, second = passes(False)
    assert first == second


def chosen(sources, choices, stop):
    return numbers(Dataset.choose_from_datasets(sources, choices, stop_on_empty_dataset=stop))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("choices", [Dataset.from_tensor_slices, Dataset.from_source])
def test_elements_are_chosen_by_number(choices):  # as tf.data
    sources = [Dataset.range(2), Dataset.range(10, 13), Dataset.range(20, 21)]
    wanted = choices([0, 1, 2, 2, 0, 1, 0, 1, 1])
    assert chosen(sources, wanted, True) == [0, 10, 20]
    assert chosen(sources, wanted, False) == [0, 10, 20, 1, 11, 12]


@pytest.mark.timeout(60)
def test_choosing_ends_with_the_last_data_set():  # as tf.data
    endless = Dataset.range(2).repeat()
    assert chosen([Dataset.range(2), Dataset.range(10, 13)], endless, False) == [0, 10, 1, 11, 12]
    assert chosen([Dataset.range(0), Dataset.range(10, 13)], endless, False) == [10, 11, 12]
    assert chosen([Dataset.range(0), Dataset.range(0)], endless, False) == []
