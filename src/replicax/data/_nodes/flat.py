"""Data sets made by a function of each element: flat_map and interleave."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, final

import numpy as np

from replicax._core.errors import UsageError
from replicax.data import _cardinality
from replicax.data._node import Cursor, Feed, Handles, Node, Path
from replicax.data._nodes.ahead import Prefetch
from replicax.data._nodes.map import call
from replicax.data._nodes.sources import first_spec
from replicax.data._seeds import drawn_seeds, with_seeds

# Elements that a thread reads at a time for one of the open data sets.
_PORTION = 32


@dataclass(frozen=True, eq=False)
class Interleave(Node):
    """`block` elements in turn from each of `cycle` data sets that `fn` makes of the elements.

    With a cycle of one it is `flat_map`. `ahead` data sets are read by threads. Random
    transformations in `fn` without a seed get theirs from `seed`: drawn ones would differ between
    workers, and after a position.
    """

    seeded: ClassVar[bool] = False

    input: Node
    fn: Callable[..., Any]
    seed: int
    cycle: int = 1
    block: int = 1
    ahead: bool = False

    @property
    def cardinality(self) -> int:
        return _cardinality.filtered(self.input.cardinality)

    @property
    def spec(self) -> Any:
        return first_spec(self)

    def open(self, path: Path) -> Cursor:
        return InterleaveCursor(self, path)

    def inner(self, element: Any, number: int) -> Node:
        """The data set of one element."""
        made = call(self.fn, element, number)
        node = getattr(made, "node", None)
        if not isinstance(node, Node):
            raise UsageError(
                f"The function of `flat_map` or `interleave` must return a data set, got "
                f"{type(made).__name__}. Return a `Dataset`, such as "
                "`Dataset.from_tensor_slices(value)`, or use `map`."
            )
        drawn = drawn_seeds(node)
        if drawn:
            seeds = np.random.SeedSequence(self.seed).generate_state(len(drawn)).tolist()
            node = with_seeds(node, dict(zip(drawn, seeds, strict=True)))
        return Prefetch(node, 2, portion=max(self.block, _PORTION)) if self.ahead else node


@final
class InterleaveCursor(Cursor):
    """A ring of open data sets; an ended one gives its place to the next."""

    def __init__(self, node: Interleave, path: Path) -> None:
        self._node = node
        self._path = path
        self._feed = Feed(node.input, path)
        self._places: list[tuple[int, Any, Feed] | None] = [None] * node.cycle
        self._place = 0  # whose turn it is
        self._given = 0  # in this turn
        self._number = 0  # of elements opened
        self._ended = False

    def read(self, count: int) -> Handles:
        out: list[Any] = []
        while len(out) < count:
            if self._places[self._place] is not None:
                out += self._turn(count - len(out))
            elif not self._open_next():
                if not any(self._places):
                    break
                self._advance()
        return out

    def _turn(self, count: int) -> list[Any]:
        """Up to `count` elements of the data set whose turn it is."""
        opened = self._places[self._place]
        assert opened is not None
        if self._node.cycle > 1:
            count = min(count, self._node.block - self._given)
        elements = opened[2].elements(count)
        self._given += len(elements)
        if len(elements) < count:
            # tf.data refills a place at its next turn; in a cycle of one, that is now.
            self._places[self._place] = None
            self._advance()
        elif self._given == self._node.block:
            self._advance()
        return elements

    def _advance(self) -> None:
        self._place = (self._place + 1) % self._node.cycle
        self._given = 0

    def _open_next(self) -> bool:
        elements = [] if self._ended else self._feed.elements(1)
        if not elements:
            self._ended = True
            return False
        node = self._node.inner(elements[0], self._number)
        # The number is part of the path, so that equal data sets shuffle differently.
        feed = Feed(node, (*self._path, self._number))
        self._places[self._place] = (self._number, elements[0], feed)
        self._number += 1
        return True

    def get_state(self) -> Any:
        places = [p and (p[0], p[1], p[2].get_state()) for p in self._places]
        return {
            "places": places,
            "turn": (self._place, self._given, self._number, self._ended),
            "input": self._feed.get_state(),
        }

    def set_state(self, state: Any) -> None:
        self._place, self._given, self._number, self._ended = state["turn"]
        self._feed.set_state(state["input"])
        for place, opened in enumerate(state["places"]):
            if opened is not None:
                number, element, inner = opened
                feed = Feed(self._node.inner(element, number), (*self._path, number))
                feed.set_state(inner)
                self._places[place] = (number, element, feed)
