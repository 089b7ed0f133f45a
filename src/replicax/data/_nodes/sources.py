"""Where elements come from: arrays, numbers, generators; and tables of rows, fetched by number."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import jax
import numpy as np

from replicax._core.errors import UsageError
from replicax.data._element import as_element
from replicax.data._formatted import formatted_rows, has_formats
from replicax.data._node import (
    UNKNOWN_CARDINALITY,
    CountCursor,
    Cursor,
    Handles,
    Node,
    OneByOne,
    Path,
    first_spec,
)
from replicax.data._spec import (
    ArraySpec,
    is_composite,
    joined,
    num_rows,
    own_copy,
    parts_of,
    rows_at,
    rows_of,
    spec_of,
    split_rows,
    stack,
)

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
    """Handles of a `ZipTable` from the handles of its parts."""
    return np.concatenate([_wide(column) for column in columns], axis=1)


def tagged(number: int, handles: np.ndarray, whole: UnionTable) -> np.ndarray:
    """Handles of a `UnionTable` from the handles of its part `number`."""
    inner = _wide(handles)
    result = np.zeros((len(handles), width(whole)), np.int64)
    result[:, 0] = number
    result[:, 1 : 1 + inner.shape[1]] = inner
    return result


@final
class NumbersCursor(CountCursor):
    """The handles 0 to `size` in order."""

    def between(self, begin: int, end: int) -> Handles:
        return np.arange(begin, end)


@final
class ElementsCursor(CountCursor):
    """The elements of a list."""

    def __init__(self, elements: list[Any]) -> None:
        super().__init__(len(elements))
        self._elements = elements

    def between(self, begin: int, end: int) -> Handles:
        return self._elements[begin:end]


@dataclass(frozen=True, eq=False)
class Slices(Node):
    """The rows of a nest of arrays in memory."""

    arrays: Any

    def __post_init__(self) -> None:
        shapes = [np.shape(leaf) for leaf in parts_of(self.arrays)]
        if not shapes or any(not s for s in shapes) or len({s[0] for s in shapes}) > 1:
            raise UsageError(
                f"The arrays have different lengths, or no rows: their shapes are {shapes}. Pass "
                "arrays, such as inputs and labels, of one length."
            )

    @property
    def cardinality(self) -> int:
        return num_rows(self.arrays)

    @property
    def spec(self) -> Any:
        return jax.tree.map(_row_spec, self.arrays, is_leaf=is_composite)

    @property
    def table(self) -> ArrayTable:
        return ArrayTable(self.arrays)

    def open(self, path: Path) -> Cursor:
        return NumbersCursor(self.cardinality)


def _row_spec(array: Any) -> ArraySpec:
    if is_composite(array):
        return array.spec.unbatched()
    if array.dtype == object and len(array):
        return spec_of(array[0])
    return ArraySpec(array.shape[1:], array.dtype)


@dataclass(frozen=True, eq=False)
class Elements(Node):
    """A list of elements."""

    elements: list[Any]

    @property
    def cardinality(self) -> int:
        return len(self.elements)

    @property
    def spec(self) -> Any:
        return spec_of(self.elements[0])

    def open(self, path: Path) -> Cursor:
        return ElementsCursor(self.elements)


@dataclass(frozen=True)
class Range(Node):
    """Numbers at equal distances; `size` None for all of them."""

    start: int
    step: int
    size: int | None
    dtype: Any

    @property
    def cardinality(self) -> int:
        return -1 if self.size is None else self.size

    @property
    def spec(self) -> Any:
        return ArraySpec((), self.dtype)

    @property
    def table(self) -> RangeTable:
        return RangeTable(self.start, self.step, self.dtype)

    def open(self, path: Path) -> Cursor:
        return NumbersCursor(self.size)


@dataclass(frozen=True, eq=False)
class Fetched(Node):
    """The rows of an object with `len` and `[]`."""

    source: Any

    @property
    def cardinality(self) -> int:
        return len(self.source)

    @property
    def table(self) -> FetchTable:
        return FetchTable(self.source)

    def open(self, path: Path) -> Cursor:
        return NumbersCursor(self.cardinality)


@final
class IteratorCursor(OneByOne):
    """The elements of an iterator; a position is a count, reached again by reading."""

    def __init__(self, restart: Callable[[], Iterator[Any]]) -> None:
        self._restart = restart
        self._elements: Iterator[Any] | None = None
        self._taken = 0

    def make(self) -> Any:
        if self._elements is None:
            self._elements = self._restart()
        element = next(self._elements)
        self._taken += 1
        return element

    def get_state(self) -> Any:
        return self._taken

    def set_state(self, state: Any) -> None:
        self.skip(state)


@dataclass(frozen=True, eq=False)
class Generated(Node):
    """The elements of an iterator that a function returns, called again for each pass."""

    restart: Callable[..., Any]
    args: tuple[Any, ...] = ()
    signature: Any = None
    size: int = UNKNOWN_CARDINALITY

    @property
    def inputs(self) -> tuple[Node, ...]:
        return ()

    @property
    def cardinality(self) -> int:
        return self.size

    @property
    def spec(self) -> Any:
        return first_spec(self) if self.signature is None else self.signature

    def open(self, path: Path) -> Cursor:
        return IteratorCursor(self._elements)

    def _elements(self) -> Iterator[Any]:
        elements = self.restart(*self.args)
        if not hasattr(elements, "__iter__") and not hasattr(elements, "__next__"):
            raise UsageError(
                f"`generator` must return an iterable, got {type(elements).__name__} from "
                f"{self.restart!r}. Write a generator function, with `yield`."
            )
        for element in elements:
            # A copy: the generator may reuse the array for the next element.
            yield self._checked(own_copy(as_element(element)))

    def _checked(self, element: Any) -> Any:
        if self.signature is None:
            return element
        try:
            return jax.tree.map(_conform, self.signature, element)
        except (ValueError, TypeError) as error:
            # JAX explains another structure in many lines, beginning with this one.
            differs = "" if "pytree structure" in str(error) else f": {error}"
            raise UsageError(
                f"The generator yielded {spec_of(element)}, which does not fit `output_signature` "
                f"{self.signature}{differs}. Correct one of the two."
            ) from None


def _conform(spec: ArraySpec, leaf: Any) -> Any:
    if is_composite(leaf) or spec.value_type is not jax.Array:
        if not spec.is_compatible_with(leaf):
            raise ValueError(f"{spec_of(leaf)} where {spec} is expected")
        return leaf
    array = np.asarray(leaf, object if spec.dtype in (str, bytes) else spec.dtype)
    expected = spec.shape
    if expected is not None and (
        len(expected) != array.ndim
        or any(e not in (None, s) for e, s in zip(expected, array.shape, strict=True))
    ):
        raise ValueError(f"shape {array.shape} where {expected} is expected")
    return array if array.ndim else array[()]


def rows_like(value: Any) -> Any:
    """A nest of sequences as a nest of arrays in host memory."""
    return jax.tree.map(_in_host_memory, as_element(value))


def _in_host_memory(leaf: Any) -> Any:
    if dataclasses.is_dataclass(leaf) or isinstance(leaf, str | bytes):
        raise UsageError.of(
            "tensors",
            "arrays, lists of numbers or a nest of them",
            leaf,
            "Use `from_tensors` for one single element.",
        )
    return np.asarray(leaf)
