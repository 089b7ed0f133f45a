"""Batches of arrays: which rows of them are fetched, and which are compared at once."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import jax
import numpy as np
import pytest

import replicax as rx
from replicax._core.errors import WorkersDiffer
from replicax._fit import array_batches
from replicax._fit.array_batches import Rows, placed_arrays
from replicax._keras import _compat

from channels import as_workers

X = np.arange(60, dtype="float32").reshape(20, 3)
Y = np.arange(20, dtype="int32")


@pytest.fixture(scope="module")
def distribution():
    return rx.MirroredStrategy(["CPU:0", "CPU:1"]).extended.distribution


def adapter_of(x, y=None, **options):
    return _compat.data_adapters.get_data_adapter(x, y, **{"batch_size": 4, **options})


def passed(x, distribution, y=None, **options):
    """A pass over arrays, batch by batch."""
    batches: Any = placed_arrays(adapter_of(x, y, **options), distribution)
    yield from batches


@pytest.mark.parametrize("numbers", [slice(2, 8), np.array([7, 0, 19, 4, 4, 1])])
@pytest.mark.parametrize("array", [X, np.asfortranarray(X), Y])
def test_some_of_the_rows_come_in_memory_that_a_device_takes_over(array, numbers):
    rows = Rows(array, numbers)
    assert (rows.shape, rows.dtype) == (array[numbers].shape, array.dtype)
    for part in (slice(None), slice(2, 5)):
        found = rows.part((part,))
        np.testing.assert_array_equal(found, array[numbers][part])
        assert found.ctypes.data % 64 == 0
        assert not np.shares_memory(found, array)
    expected = array[numbers][[0, -1]]
    np.testing.assert_array_equal(np.concatenate(rows.ends()), expected)


@pytest.mark.parametrize("shuffle", [False, True])
def test_batches_are_those_of_keras(distribution, shuffle):
    x, how = {"a": X, "b": X.astype("float64")}, {"shuffle": shuffle, "batch_size": 6}
    np.random.seed(3)
    expected = list(adapter_of(x, Y, **how).get_jax_iterator())
    np.random.seed(3)
    found = list(passed(x, distribution, Y, **how))
    jax.tree.map(np.testing.assert_array_equal, found, expected)
    assert [leaf.dtype for leaf in jax.tree.leaves(found[0])] == ["float32", "float32", "int32"]
    layouts = [batch[1].sharding.is_fully_replicated for batch in found]
    assert layouts == [False, False, False, False]  # of 6, 6, 6 and 2 rows


def test_what_keras_draws_batch_by_batch_is_read_so(distribution):
    assert placed_arrays(adapter_of(X, shuffle="batch"), distribution) is None


def comparisons(monkeypatch, distribution, rows, batch_size):
    """The first of what is compared together, how many, and how many were taken before."""
    found, taken = [], 0

    def note(what, facts, **options):
        assert options["is_timed"] is False
        ((name, value),) = facts.items()
        found.append((f"{name.split('from ')[1]}: {value.split()[0]}", taken))
        return Mock()

    monkeypatch.setattr(array_batches, "Agreement", note)
    for _ in passed(np.ones((rows, 2), "float32"), distribution, batch_size=batch_size):
        taken += 1
    return found


def test_several_batches_are_compared_at_once_before_the_first_is_needed(monkeypatch, distribution):
    assert comparisons(monkeypatch, distribution, 4 * 11 + 2, 4) == [
        ("0 on: 1", 0),
        ("1 on: 8", 0),
        ("9 on: 2", 8),
        ("11 on: 1", 10),  # has fewer rows
    ]


def test_batches_that_every_device_gets_are_compared_one_by_one(monkeypatch, distribution):
    found = comparisons(monkeypatch, distribution, 15, 5)
    assert [name for name, _ in found] == ["0 on: 1", "1 on: 1", "2 on: 1"]


@pytest.mark.parametrize(
    ("changed", "batch"),
    [((2, 1), 0), ((35, 0), 1), ((45, 1), 11)],
    ids=["in the midst of the first", "the end of a later one", "in the midst of a whole one"],
)
def test_another_row_is_an_error_before_its_batch_is_computed(distribution, changed, batch):
    def work(index):
        x = np.ones((47, 2), "float32")
        x[changed] += index
        taken = 0
        with pytest.raises(WorkersDiffer, match=f"same batches.*this pass, from {batch} on"):
            for _ in passed(x, distribution):
                taken += 1
        return taken

    assert as_workers(2, work) == [batch, batch]


def test_another_number_of_rows_is_an_error(distribution):
    def work(index):
        rows = np.ones((14 + 2 * index, 2), "float32")
        with pytest.raises(WorkersDiffer, match=r"(?s): 2 of float32\[4, 2\].*: 3 of float32"):
            list(passed(rows, distribution))

    assert as_workers(2, work) == [None, None]


def test_it_is_told_when_each_batch_is_wanted(monkeypatch, distribution):
    arrivals = Mock()
    monkeypatch.setattr(
        array_batches, "current", lambda: Mock(**{"arrivals.of_a_pass": lambda: arrivals})
    )
    batches: Any = placed_arrays(adapter_of(X), distribution)
    assert not arrivals.note.called
    next(batches)
    next(batches)
    assert arrivals.note.call_count == 2
    batches.close()  # as the collector of garbage does, in the midst of anything
    assert not arrivals.end.called
    adapter = adapter_of(X)
    others: Any = placed_arrays(adapter, distribution)
    for number in range(adapter.num_batches):
        assert arrivals.end.call_count == 0, number
        next(others)
    assert arrivals.end.call_count == 1
