"""Functions that decide or fold: filter, take_while, scan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from replicax._core.errors import UsageError
from replicax.data import _cardinality
from replicax.data._element import as_element, as_returned
from replicax.data._node import Cursor, Feed, Handles, Node, OneByOne, Path
from replicax.data._nodes.map import call
from replicax.data._nodes.select import SelectionOfElements
from replicax.data._nodes.sources import first_spec
from replicax.data._spec import own_copy


@dataclass(frozen=True, eq=False)
class Filter(SelectionOfElements, Node):
    """The elements for which `predicate` is true; with `ends`, until it is false."""

    input: Node
    predicate: Callable[..., Any]
    ends: bool = False

    @property
    def cardinality(self) -> int:
        return _cardinality.filtered(self.input.cardinality)

    def open(self, path: Path) -> Cursor:
        return FilterCursor(self, path)


@final
class FilterCursor(Cursor):
    """Elements that the predicate is asked about."""

    def __init__(self, node: Filter, path: Path) -> None:
        self._node = node
        self._feed = Feed(node.input, path)
        self._number = 0
        self._over = False

    def read(self, count: int) -> Handles:
        out: list[Any] = []
        while len(out) < count and not self._over:
            # One at a time for `take_while`: behind its end the input may be endless or costly.
            elements = self._feed.elements(1 if self._node.ends else count - len(out))
            self._over = not elements
            for element in elements:
                if self._passes(element):
                    out.append(element)
                else:
                    self._over = self._node.ends
                self._number += 1
        return out

    def _passes(self, element: Any) -> bool:
        verdict = call(self._node.predicate, element, self._number)
        if np.size(verdict) != 1:
            raise UsageError(
                "The function of `filter` or `take_while` must return one truth value, got an "
                f"array of shape {np.shape(verdict)}. Reduce it, as with `.all()`, or `unbatch` "
                "before you filter rows."
            )
        return bool(verdict)

    def get_state(self) -> Any:
        return {"number": self._number, "over": self._over, "input": self._feed.get_state()}

    def set_state(self, state: Any) -> None:
        self._number, self._over = state["number"], state["over"]
        self._feed.set_state(state["input"])


@dataclass(frozen=True, eq=False)
class Scan(Node):
    """The outputs of `fn(state, element)`, which also returns the next state."""

    input: Node
    initial: Any
    fn: Callable[[Any, Any], Any]

    @property
    def cardinality(self) -> int:
        return self.input.cardinality

    @property
    def spec(self) -> Any:
        return first_spec(self)

    def open(self, path: Path) -> Cursor:
        return ScanCursor(self, path)


@final
class ScanCursor(OneByOne, Cursor):
    """A fold that yields each step."""

    def __init__(self, node: Scan, path: Path) -> None:
        self._fn = node.fn
        self._feed = Feed(node.input, path)
        self._carry = as_element(node.initial)
        self._number = 0

    def make(self) -> Any:
        elements = self._feed.elements(1)
        if not elements:
            raise StopIteration
        # A copy: positions and later passes use the state, and `fn` may change it in place.
        result = call(self._fn, (own_copy(self._carry), elements[0]), self._number)
        if not isinstance(result, tuple | list) or len(result) != 2:
            raise UsageError(
                f"The function of `scan` must return a pair, got {type(result).__name__}. Return "
                "`state, output`."
            )
        self._carry, output = as_returned(result)
        self._number += 1
        return output

    def get_state(self) -> Any:
        state = {"number": self._number, "carry": self._carry}
        return {**state, "input": self._feed.get_state()}

    def set_state(self, state: Any) -> None:
        self._number, self._carry = state["number"], state["carry"]
        self._feed.set_state(state["input"])
