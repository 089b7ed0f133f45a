"""A server's part of a sparse table: rows that are gathered, updated and saved, a few at a time.

It knows nothing of ids, servers or connections: `DynamicTable` gives ids their rows. A table's
methods need its lock. Rows are columns in memory or in a mapped file: the values, and each slot of
the optimizer.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, final

import numpy as np

from replicax._core.errors import IndexOutOfBounds, UsageError

Apply = Callable[[Any, Any, Sequence[Any], int], tuple[Any, Sequence[Any]]]
"""`(values, gradients, slots, step) -> (values, slots)`, on the rows that have gradients."""
Ufunc = Any

# Elements per block of a row-wise optimizer, so that a block stays in the cache.
BLOCK_ELEMENTS = 1 << 16
_LEAST_ROOM = 16
_SCATTER: dict[str, Ufunc] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "max": np.maximum,
    "min": np.minimum,
}


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


@final
class Table:
    """Rows with values, and the slots of their optimizer.

    The first column of `store` is the values. `Rows(array)` is one.
    """

    def __init__(self, store: Rows, values: Column) -> None:
        self._store = store
        self._columns = [values]
        # A slot begins at its row's first update; until then its bytes are not touched.
        self._begun = np.zeros(store.rows, bool)
        self.version = 0  # grows with each write
        self.step = 0

    @classmethod
    def from_array(cls, values: np.ndarray) -> Table:
        """Make a table of an array in memory, which becomes the table's own."""
        return cls(Rows(values), Column(values.shape[1:], values.dtype))

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return self._store.rows

    def use_slots(self, slots: Sequence[Column]) -> None:
        """Keep these slots of one variable from now on; other slots are dropped."""
        if list(slots) == self._columns[1:]:
            return
        self._store.drop_columns(1)
        self._columns[1:] = slots
        for slot in slots:
            self._store.add_column(slot)
        self._begun[:] = False

    def gather(self, rows: np.ndarray) -> np.ndarray:
        """Copy the values of rows, which may be in any order and repeat."""
        return self._store.read(0, self._checked(rows))

    def update(
        self,
        rows: np.ndarray,
        gradients: np.ndarray,
        apply: Apply,
        *,
        step: int | None = None,
        rowwise: bool = False,
    ) -> None:
        """Run an optimizer on some rows, each once, with a gradient each; none is an update, too.

        `step` counts earlier updates of this table on all servers; None counts those here. If each
        row's result depends on that row alone (`rowwise`), `apply` is given rows block by block.
        Else it is given a power of two of rows, so that it is compiled for few shapes; behind the
        real ones are zeros, whose results are dropped.
        """
        rows = self._checked(rows)
        if len(rows) != len(gradients):
            raise UsageError(
                f"Cannot update {len(rows)} rows with {len(gradients)} gradients. Pass one "
                "gradient for each row, and add up the gradients of a row that occurs several "
                "times."
            )
        step = self.step if step is None else step
        size = max(1, BLOCK_ELEMENTS // max(1, prod(self._columns[0].shape)))
        size = size if rowwise else max(1, len(rows))
        for start in range(0, len(rows), size):
            block = slice(start, start + size)
            self._update(rows[block], gradients[block], apply, step, padded=not rowwise)
        self._begun[rows] = True
        self.version += 1
        self.step = step + 1

    def assign(self, rows: np.ndarray, values: np.ndarray, *, anew: bool = False) -> None:
        """Write values of rows, each named once; `anew` also resets their slots."""
        rows = self._checked(rows)
        self._store.write(0, rows, values)
        if anew:
            self._begun[rows] = False
        self.version += 1

    def scatter(self, operation: str, rows: np.ndarray, values: np.ndarray) -> None:
        """Combine values into rows, one after another if a row is named several times.

        The operation is `add`, `sub`, `mul`, `div`, `max`, `min`; or `update`, which writes.
        """
        rows, place = np.unique(self._checked(rows), return_inverse=True)
        held = self._store.read(0, rows)
        if operation == "update":
            held[place] = values
        else:
            _SCATTER[operation].at(held, place, values)
        self.assign(rows, held)

    def grow(self, rows: int) -> None:
        """Make room for more rows."""
        self._store.grow(rows)
        self._begun = grown(self._begun, rows)

    def export(self, rows: np.ndarray | None = None) -> dict[str, np.ndarray]:
        """Copy rows, by default all of them.

        Arrays by name: `rows`, `values`, `slot_0` and so on, `step`, `version`.
        """
        rows = np.arange(self.rows) if rows is None else self._checked(rows)
        columns = {f"slot_{n - 1}": self._slot(n, rows) for n in range(1, len(self._columns))}
        state = {"rows": rows, "values": self._store.read(0, rows), **columns}
        return {**state, "step": np.asarray(self.step), "version": np.asarray(self.version)}

    def load(self, state: Mapping[str, np.ndarray]) -> None:
        """Write rows that were exported; the others stay. A snapshot without slots resets them."""
        rows = self._checked(state["rows"])
        given = sum(name.startswith("slot_") for name in state)
        if given not in (0, len(self._columns) - 1):
            raise UsageError(
                f"Cannot restore rows with {given} optimizer slots into an optimizer with "
                f"{len(self._columns) - 1}. Compile the model with the optimizer it was saved "
                "with, or restore only the values."
            )
        self._store.write(0, rows, state["values"])
        for number in range(given):
            self._store.write(number + 1, rows, state[f"slot_{number}"])
        self._begun[rows] = given > 0
        self.step = int(state["step"])
        self.version = max(self.version, int(state["version"]))
        self.version += 1

    def _update(
        self, rows: np.ndarray, gradients: np.ndarray, apply: Apply, step: int, *, padded: bool
    ) -> None:
        room = max(_LEAST_ROOM, 1 << (len(rows) - 1).bit_length()) if padded else len(rows)
        values = self._store.read(0, rows, room)
        slots = [self._slot(number, rows, room) for number in range(1, len(self._columns))]
        values, slots = apply(values, grown(gradients, room), slots, step)
        for number, column in enumerate([values, *slots]):
            self._store.write(number, rows, np.asarray(column)[: len(rows)])

    def _slot(self, number: int, rows: np.ndarray, room: int = 0) -> np.ndarray:
        slot = self._store.read(number, rows, room)
        begun = self._begun[rows]
        if not begun.all():
            slot[: len(rows)][~begun] = self._columns[number].initial
        return slot

    def _checked(self, rows: Any) -> np.ndarray:
        rows = np.asarray(rows)
        if len(rows) and (rows.min() < 0 or rows.max() >= self.rows):
            raise IndexOutOfBounds(
                f"Rows range from {rows.min()} to {rows.max()}, but this part of the table has "
                f"only 0 to {self.rows - 1}. Check the ids, and that all processes divide "
                "the table alike."
            )
        return rows
