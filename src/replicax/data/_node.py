"""The parts of a pipeline: nodes, which describe it, and cursors, which run it.

A data set is a stream of *handles*. Where the elements are rows of arrays in memory (the node has
a `table`), a handle is a row number, and a batch of them is fetched by one vectorised gather.
Otherwise the handles are the elements themselves. Shuffling, taking, repeating and sharding are
written once, for handles: in memory they move numbers, not data.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, final

import numpy as np

from replicax._core.errors import UsageError
from replicax._core.tracing import around
from replicax.data._spec import spec_of, stack

INFINITE_CARDINALITY = -1
UNKNOWN_CARDINALITY = -2


@final
class Cardinality(int):
    """A number of elements, which programs for tf.data read with `numpy()`."""

    def numpy(self) -> np.int64:
        """The number, as NumPy has it."""
        return np.int64(self)


def grouped(cardinality: int, size: int, *, drop_remainder: bool) -> int:
    """The number of groups of `size` elements."""
    if cardinality < 0:
        return cardinality
    return cardinality // size if drop_remainder else -(-cardinality // size)


def added(cardinalities: Iterable[int]) -> int:
    """The number of elements of several data sets in a row."""
    known = list(cardinalities)
    if INFINITE_CARDINALITY in known:
        return INFINITE_CARDINALITY
    return UNKNOWN_CARDINALITY if UNKNOWN_CARDINALITY in known else sum(known)


def filtered(cardinality: int) -> int:
    """The number of elements that a function chooses."""
    return 0 if cardinality == 0 else UNKNOWN_CARDINALITY


# Which pass this is: the epoch, then the turn of each `repeat` on the way to the source.
Path = tuple[int, ...]
# Row numbers, one handle per first-axis entry, or elements.
Handles = np.ndarray | list[Any]

_BLOCK = 4096  # row numbers that a skip reads at a time
# Rows in memory that are fetched together for a reader of single rows, if they are small.
_ROWS_TOGETHER, _BYTES_TOGETHER = 16, 2**18


class Table(Protocol):
    """Rows that can be fetched by number, many at a time."""

    @property
    def row_bytes(self) -> int | None:
        """The size of a row in memory; None if rows have to be made."""
        ...

    def rows(self, handles: np.ndarray) -> Any:
        """These rows as a batch in memory of its own."""
        ...

    def elements(self, handles: np.ndarray) -> list[Any]:
        """These rows, one by one."""
        ...


class Cursor(ABC):
    """One pass over a node; all state of a pipeline is in its cursors."""

    @abstractmethod
    def read(self, count: int) -> Handles:
        """The next `count` handles; fewer at the end only, none after it."""

    def skip(self, count: int) -> None:
        """Pass over `count` handles."""
        block = 1  # elements may be large, row numbers are not
        while count > 0:
            passed = self.read(min(count, block))
            if not len(passed):
                return
            count -= len(passed)
            block = _BLOCK if isinstance(passed, np.ndarray) else 1

    @abstractmethod
    def get_state(self) -> Any:
        """The position, as plain data: numbers, lists, dicts and elements."""

    @abstractmethod
    def set_state(self, state: Any) -> None:
        """Go to a position; called on a cursor that has read nothing."""


class Node(ABC):
    """An immutable description of a data set, made of the descriptions that it reads from."""

    cursor: ClassVar[Callable[[Any, Path], Cursor]]

    def open(self, path: Path) -> Cursor:
        """Start a pass. Everything random in it follows from the path."""
        return type(self).cursor(self, path)

    @property
    @abstractmethod
    def cardinality(self) -> int:
        """The number of elements of a pass; negative if infinite or unknown."""

    @property
    def spec(self) -> Any:
        """An `ArraySpec` for each array of an element; by default of the first, which is read."""
        return first_spec(self)

    @property
    def table(self) -> Table | None:
        """The table that turns handles into elements; None if the handles are elements."""
        return None

    @property
    def batch_size(self) -> int | None:
        """The rows that a `batch` gives to every element but the last; None if unknown."""
        return None

    @property
    def sample(self) -> Node:
        """A node with elements like this one's, whose first is quick to read."""
        return self.rebuilt(lambda inner: inner.sample)

    @property
    def inputs(self) -> tuple[Node, ...]:
        """The nodes that this one reads from."""
        found: list[Node] = []
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            found += [part for part in _parts(value) if isinstance(part, Node)]
        return tuple(found)

    def rebuilt(self, change: Callable[[Node], Node]) -> Node:
        """This description over changed inputs; itself if nothing changed."""
        changes = {}
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            new = tuple(change(part) if isinstance(part, Node) else part for part in _parts(value))
            if any(a is not b for a, b in zip(new, _parts(value), strict=True)):
                changes[field.name] = new if isinstance(value, tuple) else new[0]
        return dataclasses.replace(self, **changes) if changes else self  # type: ignore[type-var]

    def rewritten(self, change: Callable[[Node], Node]) -> Node:
        """This description with `change` applied to every node in it, sources first."""
        return change(self.rebuilt(lambda inner: inner.rewritten(change)))

    def reseeded(self, seeds: Mapping[int, int]) -> Node:
        """This node with another seed, if its own was drawn."""
        node: Any = self
        return (
            dataclasses.replace(node, seed=seeds.get(node.seed, node.seed))
            if _has_drawn(self)
            else self
        )

    def with_own_cache(self, *part: int | str) -> Node:
        """This node for a part of the data, of which a cache keeps the elements by themselves."""
        return self


@dataclass(frozen=True, eq=False)
class Selection(Node):
    """A node that hands on elements of its one input as they are: all, unless it says otherwise."""

    input: Node

    @property
    def cardinality(self) -> int:
        return self.input.cardinality

    @property
    def spec(self) -> Any:
        return self.input.spec

    @property
    def table(self) -> Table | None:
        return self.input.table

    @property
    def batch_size(self) -> int | None:
        return self.input.batch_size


@dataclass(frozen=True, eq=False)
class SelectionOfElements(Selection):
    """A selection whose handles are the elements, even if its input's are row numbers."""

    @property
    def table(self) -> None:
        return None


def _parts(value: Any) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


@final
class Feed:
    """The elements of one pass over a node, whatever its handles are."""

    def __init__(self, node: Node, path: Path) -> None:
        self._table = node.table
        self._cursor = node.open(path)
        self._taken = 0
        self._ready: deque[Any] = deque()  # rows that were fetched but not taken
        size = None if self._table is None else self._table.row_bytes
        self._together = min(_ROWS_TOGETHER, _BYTES_TOGETHER // max(size, 1)) if size else 1

    def elements(self, count: int) -> list[Any]:
        """The next `count` elements; fewer at the end only."""
        if self._table is None:
            return list(self._cursor.read(count))
        if len(self._ready) < count:
            handles = self._cursor.read(max(count - len(self._ready), self._together))
            if len(handles):
                self._ready += self._table.elements(np.asarray(handles))
        found = [self._ready.popleft() for _ in range(min(count, len(self._ready)))]
        self._taken += len(found)
        return found

    def stacked(self, count: int) -> tuple[Any, int]:
        """A batch of the next `count` elements, and their number; (None, 0) at the end."""
        if self._table is None or self._ready:
            elements = self.elements(count)
            return (stack(elements), len(elements)) if elements else (None, 0)
        handles = self._cursor.read(count)
        self._taken += len(handles)
        if not len(handles):
            return None, 0
        return self._table.rows(np.asarray(handles)), len(handles)

    def handles(self, count: int) -> np.ndarray:
        """The numbers of the next `count` rows, of a node with a table."""
        found = np.asarray(self._cursor.read(count))
        self._taken += len(found)
        return found

    def skip(self, count: int) -> None:
        """Pass over `count` elements; among rows, without fetching them."""
        ready = [self._ready.popleft() for _ in range(min(count, len(self._ready)))]
        self._cursor.skip(count - len(ready))
        self._taken += count

    def get_state(self) -> Any:
        """The position; among row numbers a count, because they are quick to make again."""
        return self._cursor.get_state() if self._table is None else self._taken

    def set_state(self, state: Any) -> None:
        """Go to a position; before anything was read."""
        if self._table is None:
            self._cursor.set_state(state)
        else:
            self.skip(state)


def like(node: Node, handles: Sequence[Any] | np.ndarray) -> Handles:
    """Handles of this node from a list of them."""
    if node.table is None:
        return list(handles)
    return np.asarray(handles, np.int64)


def joined_handles(node: Node, parts: Sequence[Handles]) -> Handles:
    """These handles of this node, one after the other."""
    parts = [part for part in parts if len(part)] or list(parts[:1])
    if len(parts) == 1:
        return parts[0]
    if node.table is None:
        return [handle for part in parts for handle in part]
    return np.concatenate([np.asarray(part) for part in parts])


class OneByOne(Cursor):
    """A cursor that makes its elements one at a time."""

    def read(self, count: int) -> Handles:
        elements: list[Any] = []
        while len(elements) < count:
            try:
                elements.append(self.make())
            except StopIteration:
                break
        return elements

    @abstractmethod
    def make(self) -> Any:
        """Make the next element; at the end raise StopIteration, each time."""


class OverInput(Cursor):
    """A cursor that reads one input: its position is what `keeps` names, and the input's."""

    keeps: ClassVar[tuple[str, ...]] = ()
    _input: Any  # a feed or a cursor

    def get_state(self) -> Any:
        inner = self._input.get_state()
        own = {name: _kept(getattr(self, f"_{name}")) for name in self.keeps}
        return {**own, "input": inner} if own else inner

    def set_state(self, state: Any) -> None:
        for name in self.keeps:
            setattr(self, f"_{name}", _kept(state[name]))
        self._input.set_state(state["input"] if self.keeps else state)


def _kept(value: Any) -> Any:
    return list(value) if isinstance(value, list) else value


class OverElements(OverInput):
    """A cursor over the elements of the node's input, whatever its handles are."""

    def __init__(self, node: Any, path: Path) -> None:
        self._node = node
        self._input = Feed(node.input, path)


@final
class ElementCursor(OverInput):
    """A cursor whose handles are the elements, over any node."""

    def __init__(self, node: Node, path: Path) -> None:
        self._input = Feed(node, path)

    def read(self, count: int) -> Handles:
        return self._input.elements(count)


class CountCursor(Cursor):
    """A cursor whose position is a number, below `size` if it is known."""

    def __init__(self, size: int | None) -> None:
        self._size = size
        self._next = 0

    @abstractmethod
    def between(self, begin: int, end: int) -> Handles:
        """The handles from number `begin` to `end` - 1."""

    def read(self, count: int) -> Handles:
        end = self._after(count)
        handles = self.between(self._next, end)
        self._next = end  # after a failure, it is read again
        return handles

    def skip(self, count: int) -> None:
        self._next = self._after(count)

    def _after(self, count: int) -> int:
        end = self._next + count
        return end if self._size is None else min(end, self._size)

    def get_state(self) -> Any:
        return self._next

    def set_state(self, state: Any) -> None:
        self._next = state


def open_elements(node: Node, path: Path) -> Cursor:
    """Start a pass over a node whose handles are elements."""
    return node.open(path) if node.table is None else ElementCursor(node, path)


def first_spec(node: Node) -> Any:
    """The spec of a node's first element, which is read for this."""
    if around().is_known:
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


def drawn_seeds(node: Any) -> list[int]:
    """The drawn seeds in a pipeline, each once, sources first."""
    found = [seed for inner in node.inputs for seed in drawn_seeds(inner)]
    if _has_drawn(node):
        found.append(node.seed)
    return list(dict.fromkeys(found))


def with_seeds(node: Node, seeds: Mapping[int, int]) -> Node:
    """`node` with drawn seeds replaced by the seeds of a position, or of the chief.

    `seeds` maps each drawn seed to the new one. A data set that is used twice has one seed, and
    stays in step with itself.
    """
    return node.rewritten(lambda inner: inner.reseeded(seeds)) if seeds else node


def _has_drawn(node: Any) -> bool:
    return not getattr(node, "seeded", True)
