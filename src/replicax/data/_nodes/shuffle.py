"""Random order from a buffer, as tf.data does it, on handles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from replicax.data._node import Cursor, Handles, Node, Path, joined_handles, like
from replicax.data._nodes.select import Selection
from replicax.data._spec import own_copy


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
class Shuffle(Selection, Node):
    """The elements in an order given by the seed and, if reshuffled, the pass."""

    input: Node
    buffer_size: int
    seed: int
    seeded: bool  # by the user; otherwise the seed may be replaced
    reshuffle_each_iteration: bool = True

    @property
    def sample(self) -> Node:
        return self.input.sample

    def open(self, path: Path) -> Cursor:
        return ShuffleCursor(self, path)
