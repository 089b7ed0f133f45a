"""One pass after another: repeat a data set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from replicax.data import _cardinality
from replicax.data._node import Cursor, Handles, Node, Path, joined_handles, like
from replicax.data._nodes.select import Selection


@final
class RepeatCursor(Cursor):
    """Passes over a node, one after the other; each has its number in the path."""

    def __init__(self, node: Repeat, path: Path) -> None:
        self._node = node
        self._path = path
        self._start(0)

    def _start(self, turn: int) -> None:
        self._turn = turn
        self._given = 0  # by this turn
        over = 0 <= self._node.count <= turn
        self._source = None if over else self._node.input.open((*self._path, turn))

    def read(self, count: int) -> Handles:
        parts: list[Handles] = []
        missing = count
        while missing and self._source is not None:
            part = self._source.read(missing)
            parts.append(part)
            self._given += len(part)
            missing -= len(part)
            if missing and self._given:
                self._start(self._turn + 1)
            elif missing:
                self._source = None  # an empty turn would be followed by more empty ones
        return joined_handles(self._node, parts) if parts else like(self._node, [])

    def skip(self, count: int) -> None:
        size = self._node.input.cardinality
        if size > 0 and not self._given:
            turns, count = divmod(count, size)
            if turns:
                self._start(self._turn + turns)
        super().skip(count)

    def get_state(self) -> Any:
        inner = None if self._source is None else self._source.get_state()
        over = self._source is None
        return {"turn": self._turn, "given": self._given, "over": over, "input": inner}

    def set_state(self, state: Any) -> None:
        self._start(state["turn"])
        self._given = state["given"]
        if state["over"]:
            self._source = None
        elif self._source is not None:
            self._source.set_state(state["input"])


@dataclass(frozen=True, eq=False)
class Repeat(Selection, Node):
    """The input `count` times; without end if it is negative."""

    input: Node
    count: int

    @property
    def cardinality(self) -> int:
        return _cardinality.repeated(self.input.cardinality, self.count)

    def open(self, path: Path) -> Cursor:
        return RepeatCursor(self, path)
