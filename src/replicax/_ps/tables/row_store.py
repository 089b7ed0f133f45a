"""The storage of a table's rows: in memory, or in a memory-mapped file.

A row has a value and the optimizer's slots: one column each, an array with an item for each row.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, final

import numpy as np


@dataclass(frozen=True)
class Column:
    """A part of every row: its value, or a slot of the optimizer.

    A row that was not written yet has the initial value; 0 costs no memory until then.
    """

    shape: tuple[int, ...]
    dtype: Any = "float32"
    initial: float = 0.0


@final
class Rows:
    """Columns of equal length; number 0 holds the values. Rows are not checked here.

    The values are taken over, not copied. `zeros` makes the other columns, and longer ones:
    `np.zeros`, or `zeros_on_disk`.
    """

    def __init__(self, values: np.ndarray, zeros: Callable[..., np.ndarray] = np.zeros) -> None:
        self.rows = len(values)
        self._zeros = zeros
        self._arrays = [np.ascontiguousarray(values)]

    def add_column(self, column: Column) -> None:
        """Add a column of zeros, which use memory only once they are written."""
        self._arrays.append(self._zeros((self.rows, *column.shape), column.dtype))

    def drop_columns(self, kept: int) -> None:
        """Drop all columns but the first."""
        del self._arrays[kept:]

    def read(self, number: int, rows: np.ndarray, room: int = 0) -> np.ndarray:
        """Copy rows of a column, followed by zeros if there is `room` for more."""
        return take_rows(self._arrays[number], rows, room)

    def write(self, number: int, rows: np.ndarray, values: np.ndarray) -> None:
        """Write rows of a column, each once."""
        put_rows(self._arrays[number], rows, values)

    def grow(self, rows: int) -> None:
        """Make room for more rows; existing ones are copied."""
        self._arrays = [grown(array, rows, self._zeros) for array in self._arrays]
        self.rows = max(rows, self.rows)


def zeros_on_disk(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Zeros in an unnamed file, which ends with them; the system caches the parts in use."""
    size = max(1, prod(shape) * np.dtype(dtype).itemsize)
    with tempfile.TemporaryFile() as file:
        # Space is reserved now: a full disk is an error here, but a crash once it is mapped.
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)
        else:
            file.truncate(size)
        mapped = mmap.mmap(file.fileno(), size)
    if hasattr(mmap, "MADV_RANDOM"):
        mapped.madvise(mmap.MADV_RANDOM)  # else each row would load its neighbours
    return np.frombuffer(mapped, dtype, prod(shape)).reshape(shape)


def take_rows(array: np.ndarray, rows: np.ndarray, room: int = 0) -> np.ndarray:
    """Copy rows, followed by zeros if there is `room` for more."""
    out = np.empty((max(room, len(rows)), *array.shape[1:]), array.dtype)
    # `clip` spares a buffer and a check of the indices, which were checked before.
    array.take(rows, axis=0, out=out[: len(rows)], mode="clip")
    out[len(rows) :] = 0
    return out


def put_rows(array: np.ndarray, rows: np.ndarray, values: np.ndarray) -> None:
    """Write rows, each once."""
    if not array.size:
        return
    values = np.ascontiguousarray(values, array.dtype)
    # Each row as one item of raw bytes, so that NumPy copies rows and not elements.
    _items(array)[rows] = _items(values)


def grown(array: np.ndarray, rows: int, zeros: Callable[..., np.ndarray] = np.zeros) -> np.ndarray:
    """An array with at least this many rows, the new ones zeros."""
    if rows <= len(array):
        return array
    longer = zeros((rows, *array.shape[1:]), array.dtype)
    longer[: len(array)] = array
    return longer


def _items(array: np.ndarray) -> np.ndarray:
    width = prod(array.shape[1:])
    return array.reshape(len(array), width).view(f"V{array.itemsize * width}").reshape(len(array))
