"""Rows on disk behave as rows in memory do, with a bound on those in memory."""

from __future__ import annotations

import os

import numpy as np
import pytest

from replicax._core.errors import UsageError
from replicax._ps.tables.row_store import Column, ResidentRows
from replicax._ps.tables.spill import SpilledRows

from helpers import open_files

COLUMNS = [Column((3,)), Column((), "int32"), Column((2, 2), "float64")]


@pytest.fixture
def stores():
    """The same rows in memory and on disk, with four of them in memory."""
    resident = ResidentRows(np.zeros((40, 3), np.float32))
    spilled = SpilledRows(COLUMNS[0], 40, 4)
    for column in COLUMNS[1:]:
        resident.add_column(column)
        spilled.add_column(column)
    yield resident, spilled
    spilled.close()


@pytest.mark.parametrize("most", [2, 4, 30])
def test_rows_on_disk_are_those_in_memory(stores, most):
    # Also in calls that name more rows than there is memory for.
    random = np.random.default_rng(0)
    for _ in range(100):
        number = random.integers(len(COLUMNS))
        column = COLUMNS[number]
        rows = random.choice(40, random.integers(0, most + 1), replace=False)
        values = random.integers(0, 99, (len(rows), *column.shape)).astype(column.dtype)
        asked = random.integers(0, 40, random.integers(0, most + 1))
        for store in stores:
            store.write(number, rows, values)
        expected, found = [store.read(number, asked, room=8) for store in stores]
        np.testing.assert_array_equal(found, expected)
        assert found.shape == (max(8, len(asked)), *column.shape)
        assert not found[len(asked) :].any()


def test_rows_are_kept_when_more_are_needed(stores):
    for store in stores:
        store.write(0, np.arange(40), np.arange(120, dtype=np.float32).reshape(40, 3))
        store.grow(100)
        store.grow(50)
        store.write(0, np.array([99]), np.ones((1, 3)))
        assert store.rows == 100
        rows = np.array([99, 39, 0, 50])
        expected = [[1, 1, 1], [117, 118, 119], [0, 1, 2], [0, 0, 0]]
        np.testing.assert_array_equal(store.read(0, rows), expected)


def test_the_slots_of_another_optimizer_begin_at_zero(stores):
    for store in stores:
        store.write(0, np.arange(40), np.ones((40, 3)))
        store.write(1, np.arange(40), np.ones(40))
        store.drop_columns(1)
        store.add_column(Column((5,)))
        assert not store.read(1, np.arange(40)).any()
        assert store.read(0, np.arange(40)).all()


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="reads Linux's list of open files")
def test_the_files_have_no_names_and_are_closed(tmp_path):
    store = SpilledRows(Column((3,)), 40, 4, str(tmp_path))
    store.add_column(Column((2,)))
    store.write(0, np.arange(40), np.ones((40, 3)))
    assert open_files(str(tmp_path))
    assert list(tmp_path.iterdir()) == []
    store.close()
    assert open_files(str(tmp_path)) == []


def test_some_row_must_be_in_memory():
    with pytest.raises(UsageError, match="`resident_rows` must be positive. Received: 0"):
        SpilledRows(Column((3,)), 40, 0)
