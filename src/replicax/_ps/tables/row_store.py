"""Where the rows of a table are kept: `ResidentRows` in memory; `spill.py` has those on disk.

A row has a value and the optimizer's slots: one column each, an array with a row in each row.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, Protocol, final

import numpy as np


@dataclass(frozen=True)
class Column:
    """What every row has one of: its value, or a slot of the optimizer.

    Args:
        shape: The shape in one row.
        dtype: The type of the elements.
        initial: What stands in a row that was not written yet; 0 costs no memory until then.
    """

    shape: tuple[int, ...]
    dtype: Any = "float32"
    initial: float = 0.0

    @property
    def row_bytes(self) -> int:
        """The size of one row."""
        return prod(self.shape) * np.dtype(self.dtype).itemsize


class RowStore(Protocol):
    """Columns of as many rows each; number 0 holds the values. Rows are not checked here."""

    rows: int

    def add_column(self, column: Column) -> None:
        """Add a column of zeros."""
        ...

    def drop_columns(self, kept: int) -> None:
        """Drop all columns but the first."""
        ...

    def read(self, number: int, rows: np.ndarray, room: int = 0) -> np.ndarray:
        """Copy rows of a column; zeros behind them if there is `room` for more."""
        ...

    def write(self, number: int, rows: np.ndarray, values: np.ndarray) -> None:
        """Write rows of a column, each once."""
        ...

    def grow(self, rows: int) -> None:
        """Have room for more rows."""
        ...

    def close(self) -> None:
        """Give back what is held outside memory."""
        ...


@final
class ResidentRows:
    """Rows in memory.

    Args:
        values: The first column. It is taken over, not copied.
    """

    def __init__(self, values: np.ndarray) -> None:
        self.rows = len(values)
        self._arrays = [np.ascontiguousarray(values)]

    def add_column(self, column: Column) -> None:
        """Add a column of zeros, which take memory when they are written first."""
        self._arrays.append(np.zeros((self.rows, *column.shape), column.dtype))

    def drop_columns(self, kept: int) -> None:
        """Drop all columns but the first."""
        del self._arrays[kept:]

    def read(self, number: int, rows: np.ndarray, room: int = 0) -> np.ndarray:
        """Copy rows of a column; zeros behind them if there is `room` for more."""
        return take_rows(self._arrays[number], rows, room)

    def write(self, number: int, rows: np.ndarray, values: np.ndarray) -> None:
        """Write rows of a column, each once."""
        put_rows(self._arrays[number], rows, values)

    def grow(self, rows: int) -> None:
        """Have room for more rows; those that there are are copied."""
        self._arrays = [grown(array, rows) for array in self._arrays]
        self.rows = max(rows, self.rows)

    def close(self) -> None:
        """Nothing is held outside memory."""


def take_rows(array: np.ndarray, rows: np.ndarray, room: int = 0) -> np.ndarray:
    """Copy rows; zeros behind them if there is `room` for more."""
    out = np.empty((max(room, len(rows)), *array.shape[1:]), array.dtype)
    # `clip` spares a check of the indices and a buffer; they were checked.
    array.take(rows, axis=0, out=out[: len(rows)], mode="clip")
    out[len(rows) :] = 0
    return out


def put_rows(array: np.ndarray, rows: np.ndarray, values: np.ndarray) -> None:
    """Write rows, each once."""
    if not array.size:
        return
    values = np.ascontiguousarray(values, array.dtype)
    # Each row as one item of raw bytes: NumPy then copies rows, and not element by element.
    _items(array)[rows] = _items(values)


def grown(array: np.ndarray, rows: int) -> np.ndarray:
    """An array with at least so many rows, the new ones zeros."""
    if rows <= len(array):
        return array
    longer = np.zeros((rows, *array.shape[1:]), array.dtype)
    longer[: len(array)] = array
    return longer


def _items(array: np.ndarray) -> np.ndarray:
    width = prod(array.shape[1:])
    return array.reshape(len(array), width).view(f"V{array.itemsize * width}").reshape(len(array))
