"""Tables: rows fetched by number, many in one gather."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from replicax.data._element import as_element
from replicax.data._formatted import formatted_rows, has_formats
from replicax.data._spec import joined, num_rows, own_copy, rows_at, rows_of, split_rows, stack

if TYPE_CHECKING:
    from replicax.data._node import Table


@dataclass(frozen=True, eq=False)
class ArrayTable:
    """The rows of a nest of arrays in memory."""

    arrays: Any

    @property
    def row_bytes(self) -> int:
        return sum(a.nbytes for a in jax.tree.leaves(self.arrays)) // max(num_rows(self.arrays), 1)

    def rows(self, handles: np.ndarray) -> Any:
        # A copy: a batch that shared memory with the data set would change with it.
        numbers = _in_a_row(handles)
        return own_copy(self.lent(numbers)) if isinstance(numbers, range) else self.lent(numbers)

    def lent(self, numbers: np.ndarray | range) -> Any:
        """These rows; for a range, in the memory of the data set."""
        if isinstance(numbers, range):
            return rows_of(self.arrays, numbers.start, numbers.stop)
        return rows_at(self.arrays, numbers)

    def elements(self, handles: np.ndarray) -> list[Any]:
        return split_rows(self.rows(handles))


def numbers_of(table: Table, handles: np.ndarray) -> np.ndarray | range:
    """Row numbers, as a range if they are consecutive rows of arrays in memory."""
    return _in_a_row(handles) if isinstance(table, ArrayTable) else handles


def lent(table: Table, numbers: Any) -> Any:
    """The batch of these rows, for a caller that copies it: it may share the arrays' memory."""
    return table.lent(numbers) if isinstance(table, ArrayTable) else table.rows(numbers)


def _in_a_row(handles: np.ndarray) -> np.ndarray | range:
    first, count = int(handles[0]), len(handles)
    if handles[-1] - first == count - 1 and (count < 3 or (np.diff(handles) == 1).all()):
        return range(first, first + count)
    return handles


@dataclass(frozen=True)
class RangeTable:
    """The numbers `start`, `start + step`, … without end."""

    start: int
    step: int
    dtype: Any

    @property
    def row_bytes(self) -> int:
        return np.dtype(self.dtype).itemsize

    def rows(self, handles: np.ndarray) -> np.ndarray:
        return (self.start + handles * self.step).astype(self.dtype)

    def elements(self, handles: np.ndarray) -> list[Any]:
        return list(self.rows(handles))


@dataclass(frozen=True, eq=False)
class FetchTable:
    """The rows of an object that is asked for them by number: `len(source)`, `source[i]`."""

    source: Any

    @property
    def row_bytes(self) -> None:
        return None

    def rows(self, handles: np.ndarray) -> Any:
        if has_formats(self.source):
            return formatted_rows(self.source, handles.tolist())
        return stack(self.elements(handles))

    def elements(self, handles: np.ndarray) -> list[Any]:
        if has_formats(self.source):
            return split_rows(self.rows(handles))
        if callable(getattr(self.source, "__getitems__", None)):
            return [as_element(row) for row in self.source.__getitems__(handles.tolist())]
        return [as_element(self.source[int(handle)]) for handle in handles]


def _all_known(combine: Callable[[list[int]], int], tables: Sequence[Table]) -> int | None:
    sizes = [table.row_bytes for table in tables]
    known = [size for size in sizes if size is not None]
    return combine(known) if len(known) == len(sizes) else None


def width(table: Table) -> int:
    """The number of integers in a handle of this table."""
    if isinstance(table, ZipTable):
        return sum(width(part) for part in table.parts)
    return 1 + max(map(width, table.parts)) if isinstance(table, UnionTable) else 1


@dataclass(frozen=True, eq=False)
class ZipTable:
    """Rows of several tables side by side; a handle has a number for each table."""

    parts: tuple[Table, ...]
    tree: Any

    @property
    def row_bytes(self) -> int | None:
        return _all_known(sum, self.parts)

    def rows(self, handles: np.ndarray) -> Any:
        columns = self._columns(handles)
        return self._nested([t.rows(c) for t, c in zip(self.parts, columns, strict=True)])

    def elements(self, handles: np.ndarray) -> list[Any]:
        columns = self._columns(handles)
        lists = [t.elements(c) for t, c in zip(self.parts, columns, strict=True)]
        return [self._nested(row) for row in zip(*lists, strict=True)]

    def _nested(self, leaves: Sequence[Any]) -> Any:
        return jax.tree.unflatten(self.tree, leaves)

    def _columns(self, handles: np.ndarray) -> list[np.ndarray]:
        columns, start = [], 0
        for part in self.parts:
            stop = start + width(part)
            columns.append(_narrow(handles[:, start:stop]))
            start = stop
        return columns


@dataclass(frozen=True, eq=False)
class UnionTable:
    """Rows of several tables mixed; the first number of a handle names the table."""

    parts: tuple[Table, ...]

    @property
    def row_bytes(self) -> int | None:
        return _all_known(max, self.parts)

    def rows(self, handles: np.ndarray) -> Any:
        groups = self._by_part(handles)
        batch = joined([part.rows(inner) for part, _, inner in groups])
        if len(groups) == 1:
            return batch
        order = np.argsort(np.concatenate([places for _, places, _ in groups]))
        return rows_at(batch, order)

    def elements(self, handles: np.ndarray) -> list[Any]:
        found: list[Any] = [None] * len(handles)
        for part, places, inner in self._by_part(handles):
            for place, row in zip(places.tolist(), part.elements(inner), strict=True):
                found[place] = row
        return found

    def _by_part(self, handles: np.ndarray) -> list[tuple[Table, np.ndarray, np.ndarray]]:
        """For each table that occurs: the places of its handles, and the handles in it."""
        groups = []
        for number in np.unique(handles[:, 0]).tolist():
            part, places = self.parts[number], np.flatnonzero(handles[:, 0] == number)
            groups.append((part, places, _narrow(handles[places, 1 : 1 + width(part)])))
        return groups


def _narrow(columns: np.ndarray) -> np.ndarray:
    return columns[:, 0] if columns.shape[1] == 1 else columns


def _wide(handles: np.ndarray) -> np.ndarray:
    return handles[:, None] if handles.ndim == 1 else handles


def beside(columns: Sequence[np.ndarray]) -> np.ndarray:
    """Handles of a `ZipTable` from those of its parts."""
    return np.concatenate([_wide(column) for column in columns], axis=1)


def tagged(number: int, handles: np.ndarray, whole: UnionTable) -> np.ndarray:
    """Handles of a `UnionTable` from those of its part `number`."""
    inner = _wide(handles)
    result = np.zeros((len(handles), width(whole)), np.int64)
    result[:, 0] = number
    result[:, 1 : 1 + inner.shape[1]] = inner
    return result
