"""Rows of a cell: updated a few at a time, and captured as they were at one moment."""

import threading
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from replicax._ps.server import cells
from replicax._ps.server.cells import RowCapture, update_rows
from replicax._ps.tables.dynamic_table import zeros_on_disk
from replicax._ps.variables.shard_optimizer import Part

ROWS, DIM = 50, 3
VALUES = np.arange(ROWS * DIM, dtype=np.float32).reshape(ROWS, DIM)


def test_rows_that_change_while_they_are_copied_are_as_they_were(monkeypatch):
    monkeypatch.setattr(cells, "BLOCK_BYTES", 4 * 8)  # four rows at a time
    table = np.arange(20.0)
    capture = RowCapture([table])
    found = {}
    for step, (rows, (values,)) in enumerate(capture.chunks(threading.Lock())):
        found.update(zip(rows.tolist(), values.tolist(), strict=True))
        changed = np.array([step, 18, 19])
        capture.save(changed)
        table[changed] = -1.0
    assert found == {row: float(row) for row in range(20)}


def test_every_row_comes_once_also_of_several_arrays():
    table, slot = np.arange(10.0), np.arange(10.0).reshape(5, 2)
    capture = RowCapture([table[:5], slot])
    capture.save(np.array([3, 4]))
    ((rows, (values, slots)),) = capture.chunks(threading.Lock())
    assert sorted(rows.tolist()) == [0, 1, 2, 3, 4]
    np.testing.assert_array_equal(values, rows)
    np.testing.assert_array_equal(slots[:, 0], 2 * rows)


def by(update, *, rowwise=False):
    """What updates rows: `update(values, gradients, slots)`."""

    return SimpleNamespace(
        rowwise=lambda part: (lambda *given: update(*given[:3])) if rowwise else None,
        updated=lambda part, values, gradients, slots, scale: update(values, gradients, slots),
        iterations=0,
        learning_rate=1.0,
    )


def update(held, rows, grads, update, **options):
    part = Part("table", held[0].shape, str(held[0].dtype))
    update_rows(held, np.asarray(rows), grads, by(update, **options), part, 1.0)


@pytest.mark.parametrize("zeros", [np.zeros, zeros_on_disk])
def test_an_optimizer_meets_few_shapes_and_its_padding_is_dropped(zeros):
    held = [zeros((ROWS, DIM), "float32"), zeros((ROWS, 1), "float32")]
    held[0][:] = VALUES
    shapes = set()

    def spoils_padding(values, gradients, slots):
        shapes.add(values.shape[0])
        assert values.shape == gradients.shape
        real = gradients[:, :1] != 0
        return np.where(real, values - gradients, np.nan), [slots[0] + real]

    for count in range(ROWS):
        rows = np.arange(count)[::-1]
        update(held, rows, np.ones((count, DIM), np.float32), spoils_padding)
    assert shapes == {16, 32, 64}
    times = np.arange(ROWS - 1, -1, -1, dtype=np.float32)[:, None]
    np.testing.assert_array_equal(held[0], VALUES - times)
    np.testing.assert_array_equal(held[1], times)


def test_a_rowwise_optimizer_goes_by_blocks():
    wide, counts = np.zeros((100, 1 << 14), np.float32), []

    def sgd(values, gradients, slots):
        counts.append(len(values))
        values -= gradients

    update([wide], np.arange(10), np.ones((10, 1 << 14), np.float32), sgd, rowwise=True)
    assert counts == [4, 4, 2]
    assert wide.sum() == -10 * (1 << 14)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64", "int32"])
def test_rows_may_be_of_any_type(dtype):
    held = np.zeros((5, 2), jax.numpy.dtype(dtype))
    update([held], [1], np.ones((1, 2), held.dtype), lambda v, g, slots: (v - g, slots))
    assert held.tolist() == [[0, 0], [-1, -1], *[[0, 0]] * 3]
