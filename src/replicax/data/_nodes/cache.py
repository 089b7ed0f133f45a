"""Elements kept from the first complete pass on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, final

from replicax.data._node import Cursor, Handles, Node, Path, Table, open_elements
from replicax.data._nodes.select import Selection
from replicax.data._nodes.window import ElementsCursor
from replicax.data._spec import read_only

_FIRST: Path = (0,)


@dataclass(eq=False)
class Memory:
    """The elements of a complete pass; None before there was one.

    The share of a worker has a memory of its own among the parts.
    """

    elements: list[Any] | None = None
    parts: dict[Any, Memory] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Cache(Selection, Node):
    """The elements of the first complete pass, kept in memory; later passes read them."""

    input: Node
    memory: Memory = field(default_factory=Memory)

    @property
    def table(self) -> Table | None:
        # Rows in memory need no cache.
        table = self.input.table
        return table if table is not None and table.row_bytes is not None else None

    def open(self, path: Path) -> Cursor:
        # Every pass has the path of the first: a pass resumed at a position goes on filling the
        # cache.
        if self.table is not None:
            return self.input.open(_FIRST)
        if self.memory.elements is not None:
            return ElementsCursor(self.memory.elements)
        return FillingCursor(self)


@final
class FillingCursor(Cursor):
    """Reads the input and keeps what it gives, until its end makes it complete."""

    def __init__(self, node: Cache) -> None:
        self._node = node
        self._source = open_elements(node.input, _FIRST)
        self._kept: list[Any] = []
        self._sound = True  # no error has occurred

    def read(self, count: int) -> Handles:
        sound, self._sound = self._sound, False
        found = [read_only(element) for element in self._source.read(count)]
        self._sound = sound
        self._kept += found
        if len(found) < count and sound:
            self._node.memory.elements = self._kept
        return found

    def get_state(self) -> Any:
        return len(self._kept)

    def set_state(self, state: Any) -> None:
        self.skip(state)
