"""The choice and order of elements: take, skip, shard, repeat, and shuffle from a buffer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from replicax.data._node import (
    INFINITE_CARDINALITY,
    UNKNOWN_CARDINALITY,
    Cursor,
    Handles,
    Node,
    OverInput,
    Path,
    Selection,
    joined_handles,
    like,
)
from replicax.data._spec import own_copy


@final
class TakeCursor(OverInput):
    """The first `left` handles."""

    keeps = ("left",)

    def __init__(self, source: Cursor, left: int) -> None:
        self._input = source
        self._left = left

    def read(self, count: int) -> Handles:
        handles = self._input.read(min(count, self._left))
        self._left -= len(handles)
        return handles

    def skip(self, count: int) -> None:
        count = min(count, self._left)
        self._input.skip(count)
        self._left -= count


@dataclass(frozen=True, eq=False)
class Take(Selection):
    """The first `count` elements; all if it is negative."""

    count: int

    @property
    def cardinality(self) -> int:
        size = self.input.cardinality
        if self.count < 0 or size == UNKNOWN_CARDINALITY:
            return size if self.count else 0
        return self.count if size == INFINITE_CARDINALITY else min(size, self.count)

    def open(self, path: Path) -> Cursor:
        source = self.input.open(path)
        return source if self.count < 0 else TakeCursor(source, self.count)


@final
class SkipCursor(OverInput):
    """The handles after the first `ahead`."""

    keeps = ("ahead",)

    def __init__(self, source: Cursor, ahead: int) -> None:
        self._input = source
        self._ahead = ahead

    def read(self, count: int) -> Handles:
        self.skip(0)
        return self._input.read(count)

    def skip(self, count: int) -> None:
        self._input.skip(self._ahead + count)
        self._ahead = 0


@dataclass(frozen=True, eq=False)
class Skip(Selection):
    """The elements after the first `count`; none if it is negative."""

    count: int

    @property
    def cardinality(self) -> int:
        size = self.input.cardinality
        if self.count < 0:
            return 0
        return size if size < 0 else max(0, size - self.count)

    def open(self, path: Path) -> Cursor:
        source = self.input.open(path)
        return TakeCursor(source, 0) if self.count < 0 else SkipCursor(source, self.count)


@final
class ShardCursor(OverInput):
    """Of every `num` blocks of `block` handles the one numbered `index`."""

    keeps = ("within", "begun")

    def __init__(self, node: Shard, path: Path) -> None:
        self._node = node
        self._input = node.input.open(path)
        self._num, self._index, self._block = node.num, node.index, node.block
        self._within = 0  # handles read of the present block
        self._begun = False

    def read(self, count: int) -> Handles:
        if self._block == 1:
            handles = self._input.read(count * self._num)
            return handles[self._index :: self._num]
        parts: list[Handles] = []
        missing = count
        while missing or not parts:
            self._advance()
            part = self._input.read(min(missing, self._block - self._within))
            parts.append(part)
            self._within += len(part)
            missing -= len(part)
            if not len(part):
                break
        return joined_handles(self._node, parts)

    def _advance(self) -> None:
        if not self._begun:
            self._input.skip(self._index * self._block)
            self._begun = True
        elif self._within == self._block:
            self._input.skip((self._num - 1) * self._block)
            self._within = 0


@dataclass(frozen=True, eq=False)
class Shard(Selection):
    """Every `num`-th block of `block` elements, from the one numbered `index`."""

    cursor = ShardCursor

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


@dataclass(frozen=True, eq=False)
class ShardHint(Selection):
    """The place where a strategy may put a shard; until then, all elements."""

    def open(self, path: Path) -> Cursor:
        return self.input.open(path)


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
class Repeat(Selection):
    """The input `count` times; without end if it is negative."""

    cursor = RepeatCursor

    count: int

    @property
    def cardinality(self) -> int:
        size = self.input.cardinality
        if size == 0:
            return 0
        if self.count < 0:
            return INFINITE_CARDINALITY
        return size if size < 0 and self.count else size * self.count


@final
class ShuffleCursor(Cursor):
    """Handles out of a buffer, each drawn at random and replaced by the next one in.

    After the end of the input, the rest of the buffer follows in random order, so a buffer that
    holds the whole input gives every order with the same probability.
    """

    def __init__(self, node: Shuffle, path: Path) -> None:
        self._node = node
        self._source = node.input.open(path)
        turn = path if node.reshuffle_each_iteration else ()
        self._random = np.random.default_rng(np.random.SeedSequence(node.seed, spawn_key=turn))
        self._buffer: Handles | None = None
        self._rest: Handles | None = None  # after the end of the input: the handles left, in order
        self._given = 0  # of the rest
        self._is_noted = False  # whether a position holds waiting elements

    def read(self, count: int) -> Handles:
        handles = self._read(count)
        # A copy: a function may change its argument in place, and a position must not change.
        return own_copy(handles) if self._is_noted else handles

    def _read(self, count: int) -> Handles:
        if self._buffer is None and self._rest is None:
            self._begin()
        out = like(self._node, [])
        if self._buffer is not None:
            out = self._exchange(count)
            if len(out) < count:
                self._end(like(self._node, self._buffer))
        if self._rest is None:
            return out
        last = self._rest[self._given : self._given + count - len(out)]
        self._given += len(last)
        return joined_handles(self._node, [out, last])

    def _begin(self) -> None:
        first = self._source.read(self._node.buffer_size)
        if len(first) < self._node.buffer_size:
            self._end(first)
        else:
            self._buffer = first

    def _exchange(self, count: int) -> Handles:
        incoming, buffer = _listed(self._source.read(count)), self._buffer
        if not incoming or buffer is None:
            return like(self._node, [])
        self._buffer = buffer = _listed(buffer)
        out = []
        places = self._random.integers(len(buffer), size=len(incoming)).tolist()
        for place, handle in zip(places, incoming, strict=True):
            out.append(buffer[place])
            buffer[place] = handle
        return like(self._node, out)

    def _end(self, left: Handles) -> None:
        order = self._random.permutation(len(left))
        self._buffer = None
        self._rest = left[order] if isinstance(left, np.ndarray) else [left[i] for i in order]

    def get_state(self) -> Any:
        self._is_noted = True
        return {
            "buffer": None if self._buffer is None else list(self._buffer),
            "rest": None if self._rest is None else list(self._rest[self._given :]),
            "random": self._random.bit_generator.state,
            "input": self._source.get_state(),
        }

    def set_state(self, state: Any) -> None:
        self._is_noted = True
        self._buffer = None if state["buffer"] is None else list(state["buffer"])
        self._rest = None if state["rest"] is None else like(self._node, state["rest"])
        self._random.bit_generator.state = state["random"]
        self._source.set_state(state["input"])


def _listed(handles: Handles) -> list[Any]:
    return handles.tolist() if isinstance(handles, np.ndarray) else handles


@dataclass(frozen=True, eq=False)
class Shuffle(Selection):
    """The elements in an order given by the seed and, if reshuffled, the pass."""

    cursor = ShuffleCursor

    buffer_size: int
    seed: int
    seeded: bool  # by the user; otherwise the seed may be replaced
    reshuffle_each_iteration: bool = True

    @property
    def sample(self) -> Node:
        return self.input.sample
