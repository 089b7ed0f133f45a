"""Windows: data sets of neighbouring elements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

from replicax.data import _cardinality
from replicax.data._node import Cursor, Feed, Handles, Node, OneByOne, Path
from replicax.data._nodes.sources import first_spec
from replicax.data._spec import columns, spec_of


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


@final
class ElementsCursor(Cursor):
    """The elements of a list from a position on."""

    def __init__(self, elements: list[Any]) -> None:
        self._elements = elements
        self._next = 0

    def read(self, count: int) -> Handles:
        found = self._elements[self._next : self._next + count]
        self._next += len(found)
        return found

    def get_state(self) -> Any:
        return self._next

    def set_state(self, state: Any) -> None:
        self._next = state


@dataclass(frozen=True, eq=False)
class Window(Node):
    """`size` elements, `stride` apart; the next window begins `shift` elements later.

    `wrap` makes a data set of a node: the elements of a window are one, or a nest of them.
    """

    input: Node
    size: int
    shift: int
    stride: int
    drop_remainder: bool
    wrap: Callable[[Node], Any]

    @property
    def cardinality(self) -> int:
        total = self.input.cardinality
        if total < 0:
            return total
        if not self.drop_remainder:
            return _cardinality.grouped(total, self.shift, drop_remainder=False)
        reach = (self.size - 1) * self.stride + 1
        return max(0, (total - reach) // self.shift + 1)

    @property
    def spec(self) -> Any:
        return first_spec(self)

    def open(self, path: Path) -> Cursor:
        return WindowCursor(self, path)


@final
class WindowCursor(OneByOne, Cursor):
    """Keeps the elements that the next window may need."""

    def __init__(self, node: Window, path: Path) -> None:
        self._node = node
        self._feed = Feed(node.input, path)
        self._kept: list[Any] = []

    def make(self) -> Any:
        node = self._node
        reach = (node.size - 1) * node.stride + 1
        if len(self._kept) < reach:
            self._kept += self._feed.elements(reach - len(self._kept))
        members = self._kept[: reach : node.stride]
        if not members or (node.drop_remainder and len(members) < node.size):
            raise StopIteration
        self._kept, missing = self._kept[node.shift :], node.shift - len(self._kept)
        if missing > 0:
            self._feed.skip(missing)
        return self._as_data_sets(members)

    def _as_data_sets(self, members: list[Any]) -> Any:
        tree, found = columns(members)
        return tree.unflatten([self._node.wrap(Elements(list(column))) for column in found])

    def get_state(self) -> Any:
        return {"kept": list(self._kept), "input": self._feed.get_state()}

    def set_state(self, state: Any) -> None:
        self._kept = list(state["kept"])
        self._feed.set_state(state["input"])
