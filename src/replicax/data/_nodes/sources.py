"""Where elements come from: arrays, numbers, generators, and objects with rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import jax
import numpy as np

from replicax._core.errors import UsageError
from replicax._core.tracing import may_read
from replicax.data._cardinality import UNKNOWN_CARDINALITY
from replicax.data._composite import is_composite
from replicax.data._element import as_element
from replicax.data._node import Cursor, Handles, Node, OneByOne, Path, open_elements
from replicax.data._nodes.tables import ArrayTable, FetchTable, RangeTable
from replicax.data._spec import (
    ArraySpec,
    common_spec,
    num_rows,
    own_copy,
    parts_of,
    spec_of,
)


@final
class NumbersCursor(Cursor):
    """The handles 0 to `size` in order; without end if `size` is None."""

    def __init__(self, size: int | None) -> None:
        self._size = size
        self._next = 0

    def read(self, count: int) -> Handles:
        stop = self._next + count
        if self._size is not None:
            stop = min(stop, self._size)
        handles = np.arange(self._next, stop)
        self._next = stop
        return handles

    def skip(self, count: int) -> None:
        self._next += count if self._size is None else min(count, self._size - self._next)

    def get_state(self) -> Any:
        return self._next

    def set_state(self, state: Any) -> None:
        self._next = state


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
    def spec(self) -> Any:
        return first_spec(self)

    @property
    def table(self) -> FetchTable:
        return FetchTable(self.source)

    def open(self, path: Path) -> Cursor:
        return NumbersCursor(self.cardinality)


@final
class IteratorCursor(OneByOne, Cursor):
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


def first_spec(node: Node) -> Any:
    """The spec of a node's first element, which is read for this."""
    if not may_read():
        raise UsageError(
            f"The shapes of {type(node).__name__.lower()} are known only from its elements, and "
            "reading one now would take it from the data. Give a generator an `output_signature`; "
            "behind a `map`, leave out the warm-up."
        )
    for element in open_elements(node.sample, (0,)).read(1):
        return spec_of(element)
    raise UsageError(
        "The data set is empty, so the shapes of its elements are unknown. Check its files, "
        "arrays and filters."
    )


def spec_of_all(nodes: Sequence[Node]) -> Any:
    """The spec of elements of any of these nodes; nodes without elements do not count."""
    known: list[Any] = []
    unknown: list[UsageError] = []
    for node in nodes:
        try:
            known.append(node.spec)
        except UsageError as error:
            unknown.append(error)
    if not known:
        raise unknown[0]
    return common_spec(known)


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
