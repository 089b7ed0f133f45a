"""The choice and order of elements: take, skip and shard."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from replicax.data import _cardinality
from replicax.data._node import Cursor, Handles, Node, Path, Table, joined_handles


class Selection:
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


class SelectionOfElements(Selection):
    """A selection whose handles are the elements, also where those of its input are row numbers."""

    @property
    def table(self) -> None:
        return None


@final
class TakeCursor(Cursor):
    """The first `left` handles."""

    def __init__(self, source: Cursor, left: int) -> None:
        self._source = source
        self._left = left

    def read(self, count: int) -> Handles:
        handles = self._source.read(min(count, self._left))
        self._left -= len(handles)
        return handles

    def skip(self, count: int) -> None:
        count = min(count, self._left)
        self._source.skip(count)
        self._left -= count

    def get_state(self) -> Any:
        return {"left": self._left, "input": self._source.get_state()}

    def set_state(self, state: Any) -> None:
        self._left = state["left"]
        self._source.set_state(state["input"])


@dataclass(frozen=True, eq=False)
class Take(Selection, Node):
    """The first `count` elements; all if it is negative."""

    input: Node
    count: int

    @property
    def cardinality(self) -> int:
        return _cardinality.taken(self.input.cardinality, self.count)

    def open(self, path: Path) -> Cursor:
        source = self.input.open(path)
        return source if self.count < 0 else TakeCursor(source, self.count)


@final
class SkipCursor(Cursor):
    """The handles after the first `ahead`."""

    def __init__(self, source: Cursor, ahead: int) -> None:
        self._source = source
        self._ahead = ahead

    def read(self, count: int) -> Handles:
        self.skip(0)
        return self._source.read(count)

    def skip(self, count: int) -> None:
        self._source.skip(self._ahead + count)
        self._ahead = 0

    def get_state(self) -> Any:
        return {"ahead": self._ahead, "input": self._source.get_state()}

    def set_state(self, state: Any) -> None:
        self._ahead = state["ahead"]
        self._source.set_state(state["input"])


@dataclass(frozen=True, eq=False)
class Skip(Selection, Node):
    """The elements after the first `count`; none if it is negative."""

    input: Node
    count: int

    @property
    def cardinality(self) -> int:
        return _cardinality.skipped(self.input.cardinality, self.count)

    def open(self, path: Path) -> Cursor:
        source = self.input.open(path)
        return TakeCursor(source, 0) if self.count < 0 else SkipCursor(source, self.count)


@final
class ShardCursor(Cursor):
    """Of every `num` blocks of `block` handles the one numbered `index`."""

    def __init__(self, node: Shard, path: Path) -> None:
        self._node = node
        self._source = node.input.open(path)
        self._num, self._index, self._block = node.num, node.index, node.block
        self._within = 0  # handles read of the present block
        self._begun = False

    def read(self, count: int) -> Handles:
        if self._block == 1:
            handles = self._source.read(count * self._num)
            return handles[self._index :: self._num]
        parts: list[Handles] = []
        missing = count
        while missing or not parts:
            self._advance()
            part = self._source.read(min(missing, self._block - self._within))
            parts.append(part)
            self._within += len(part)
            missing -= len(part)
            if not len(part):
                break
        return joined_handles(self._node, parts)

    def _advance(self) -> None:
        if not self._begun:
            self._source.skip(self._index * self._block)
            self._begun = True
        elif self._within == self._block:
            self._source.skip((self._num - 1) * self._block)
            self._within = 0

    def get_state(self) -> Any:
        return {"within": self._within, "begun": self._begun, "input": self._source.get_state()}

    def set_state(self, state: Any) -> None:
        self._within, self._begun = state["within"], state["begun"]
        self._source.set_state(state["input"])


@dataclass(frozen=True, eq=False)
class Shard(Selection, Node):
    """Every `num`-th block of `block` elements, from the one numbered `index`."""

    input: Node
    num: int
    index: int
    block: int = 1

    @property
    def cardinality(self) -> int:
        size = self.input.cardinality
        if size < 0:
            return size
        whole, rest = divmod(size, self.num * self.block)
        return whole * self.block + min(max(rest - self.index * self.block, 0), self.block)

    def open(self, path: Path) -> Cursor:
        return ShardCursor(self, path)


@dataclass(frozen=True, eq=False)
class ShardHint(Selection, Node):
    """The place where a strategy may put a shard; until then, all elements."""

    input: Node

    def open(self, path: Path) -> Cursor:
        return self.input.open(path)
