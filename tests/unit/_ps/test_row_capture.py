"""Rows as they were at one moment."""

from __future__ import annotations

import threading

import numpy as np

from replicax._ps.server import cells
from replicax._ps.server.cells import RowCapture


def gathered(chunks):
    found = {}
    for rows, (values,) in chunks:
        assert not found.keys() & set(rows.tolist())
        found.update(zip(rows.tolist(), values.tolist(), strict=True))
    return found


def test_rows_that_change_while_they_are_copied_are_as_they_were(monkeypatch):
    monkeypatch.setattr(cells, "BLOCK_BYTES", 4 * 8)  # four rows at a time
    table = np.arange(20.0)
    wanted = np.arange(20) % 2 == 0
    capture = RowCapture([table], wanted.copy())
    found = {}
    for step, (rows, (values,)) in enumerate(capture.chunks(threading.Lock())):
        found.update(zip(rows.tolist(), values.tolist(), strict=True))
        changed = np.array([step, 18, 19])
        capture.save(changed)
        table[changed] = -1.0
    assert found == {row: float(row) for row in range(0, 20, 2)}


def test_every_wanted_row_comes_once_also_of_several_arrays():
    table, slot = np.arange(10.0), np.arange(10.0).reshape(5, 2)
    capture = RowCapture([table[:5], slot], np.array([True, False, True, True, False]))
    capture.save(np.array([3, 4]))
    ((rows, (values, slots)),) = capture.chunks(threading.Lock())
    assert sorted(rows.tolist()) == [0, 2, 3]
    np.testing.assert_array_equal(values, rows)
    np.testing.assert_array_equal(slots[:, 0], 2 * rows)


def test_nothing_wanted_is_nothing():
    assert gathered(RowCapture([np.ones(3)], np.zeros(3, bool)).chunks(threading.Lock())) == {}
