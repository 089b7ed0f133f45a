"""Several data sets as one: side by side (zip), one after the other, or mixed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import jax
import numpy as np

from replicax._core.errors import UsageError
from replicax.data import _cardinality
from replicax.data._cardinality import INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
from replicax.data._node import (
    Cursor,
    Feed,
    Handles,
    Node,
    OneByOne,
    Path,
    Table,
    joined_handles,
    open_elements,
)
from replicax.data._nodes.sources import spec_of_all
from replicax.data._nodes.tables import UnionTable, ZipTable, beside, tagged


class Several:
    """A node over several nodes, whose elements are like theirs unless it says otherwise."""

    nodes: tuple[Node, ...]

    @property
    def spec(self) -> Any:
        return spec_of_all(self.nodes)

    @property
    def batch_size(self) -> int | None:
        sizes = {node.batch_size for node in self.nodes}
        return sizes.pop() if len(sizes) == 1 else None


@dataclass(frozen=True, eq=False)
class Zip(Several, Node):
    """Elements of several nodes side by side, in a nest; ends with the shortest."""

    nodes: tuple[Node, ...]
    tree: Any

    @property
    def cardinality(self) -> int:
        return _cardinality.shortest(node.cardinality for node in self.nodes)

    @property
    def spec(self) -> Any:
        return jax.tree.unflatten(self.tree, [node.spec for node in self.nodes])

    @property
    def table(self) -> ZipTable | None:
        parts: list[Table] = [node.table for node in self.nodes if node.table is not None]
        return ZipTable(tuple(parts), self.tree) if len(parts) == len(self.nodes) else None

    def open(self, path: Path) -> Cursor:
        return ZipCursor(self, path)


@final
class ZipCursor(Cursor):
    """Handles of several nodes side by side."""

    def __init__(self, node: Zip, path: Path) -> None:
        self._tree = node.tree
        self._in_memory = node.table is not None
        # The same path for all, so that data sets shuffled with one seed stay in step.
        self._sources = [
            n.open(path) if self._in_memory else open_elements(n, path) for n in node.nodes
        ]

    def read(self, count: int) -> Handles:
        columns: list[Handles] = []
        for source in self._sources:
            columns.append(source.read(count))
            count = len(columns[-1])  # the next ones need not read more
        if self._in_memory:
            return beside([np.asarray(column)[:count] for column in columns])
        rows = zip(*[column[:count] for column in columns], strict=True)
        return [jax.tree.unflatten(self._tree, row) for row in rows]

    def get_state(self) -> Any:
        return [source.get_state() for source in self._sources]

    def set_state(self, state: Any) -> None:
        for source, inner in zip(self._sources, state, strict=True):
            source.set_state(inner)


@final
class ConcatenateCursor(Cursor):
    """Several nodes, one after the other."""

    def __init__(self, node: Concatenate, path: Path) -> None:
        self._node = node
        self._path = path
        self._table = node.table
        self._start(0)

    def _start(self, number: int) -> None:
        node = self._node.nodes[number]
        self._number = number
        self._source = open_elements(node, self._path) if not self._table else node.open(self._path)

    def read(self, count: int) -> Handles:
        parts: list[Handles] = []
        missing = count
        while True:
            part = self._source.read(missing)
            if self._table is not None:
                part = tagged(self._number, np.asarray(part), self._table)
            parts.append(part)
            missing -= len(part)
            if not missing or self._number == len(self._node.nodes) - 1:
                return joined_handles(self._node, parts)
            self._start(self._number + 1)

    def get_state(self) -> Any:
        return {"number": self._number, "input": self._source.get_state()}

    def set_state(self, state: Any) -> None:
        self._start(state["number"])
        self._source.set_state(state["input"])


@dataclass(frozen=True, eq=False)
class Concatenate(Several, Node):
    """The elements of several nodes, one node after the other."""

    nodes: tuple[Node, ...]

    @property
    def cardinality(self) -> int:
        return _cardinality.added(node.cardinality for node in self.nodes)

    @property
    def table(self) -> UnionTable | None:
        tables = [node.table for node in self.nodes]
        parts = tuple(table for table in tables if table is not None)
        return UnionTable(parts) if len(parts) == len(tables) else None

    def open(self, path: Path) -> Cursor:
        return ConcatenateCursor(self, path)


@dataclass(frozen=True, eq=False)
class Sampled(Several, Node):
    """Each element from a node drawn by its weight."""

    nodes: tuple[Node, ...]
    weights: tuple[float, ...]
    seed: int
    seeded: bool
    stop_on_empty: bool
    rerandomize: bool = True

    @property
    def cardinality(self) -> int:
        pairs = zip(self.nodes, self.weights, strict=True)
        sizes = [node.cardinality for node, weight in pairs if weight]
        if not self.stop_on_empty:
            return _cardinality.added(sizes)
        alike = set(sizes) in ({0}, {INFINITE_CARDINALITY})
        return sizes[0] if alike else UNKNOWN_CARDINALITY

    def open(self, path: Path) -> Cursor:
        return SampledCursor(self, path)


@final
class SampledCursor(OneByOne, Cursor):
    """Draws a node for each element."""

    def __init__(self, node: Sampled, path: Path) -> None:
        self._node = node
        self._feeds = [Feed(n, path) for n in node.nodes]
        self._weights = np.array(node.weights, float)
        turn = path if node.rerandomize else ()
        self._random = np.random.default_rng(np.random.SeedSequence(node.seed, spawn_key=turn))

    def make(self) -> Any:
        while self._weights.sum() > 0:
            limits = np.cumsum(self._weights)
            draw = self._random.random() * limits[-1]
            chosen = min(int(np.searchsorted(limits, draw, "right")), len(limits) - 1)
            elements = self._feeds[chosen].elements(1)
            if elements:
                return elements[0]
            self._weights[slice(None) if self._node.stop_on_empty else chosen] = 0
        raise StopIteration

    def get_state(self) -> Any:
        return {
            "weights": self._weights.tolist(),
            "random": self._random.bit_generator.state,
            "inputs": [feed.get_state() for feed in self._feeds],
        }

    def set_state(self, state: Any) -> None:
        self._weights = np.array(state["weights"])
        self._random.bit_generator.state = state["random"]
        for feed, inner in zip(self._feeds, state["inputs"], strict=True):
            feed.set_state(inner)


@dataclass(frozen=True, eq=False)
class Chosen(Several, Node):
    """Each element from the node whose number `choices` says."""

    nodes: tuple[Node, ...]
    choices: Node
    stop_on_empty: bool

    @property
    def cardinality(self) -> int:
        sizes = {node.cardinality for node in self.nodes}
        if sizes == {INFINITE_CARDINALITY}:
            return self.choices.cardinality
        return 0 if sizes == {0} else UNKNOWN_CARDINALITY

    def open(self, path: Path) -> Cursor:
        return ChosenCursor(self, path)


@final
class ChosenCursor(OneByOne, Cursor):
    """Asks for a number, then reads from that node."""

    def __init__(self, node: Chosen, path: Path) -> None:
        self._stop_on_empty = node.stop_on_empty
        self._feeds = [Feed(n, path) for n in node.nodes]
        self._choices = Feed(node.choices, path)
        self._left = set(range(len(self._feeds)))  # those that have not ended

    def make(self) -> Any:
        while self._left:
            choices = self._choices.elements(1)
            if not choices:
                break
            chosen = self._checked(choices[0])
            elements = self._feeds[chosen].elements(1)
            if elements:
                return elements[0]
            self._left -= self._left if self._stop_on_empty else {chosen}
        raise StopIteration

    def _checked(self, choice: Any) -> int:
        whole = np.ndim(choice) == 0 and np.asarray(choice).dtype.kind in "iu"
        if not whole or choice not in range(len(self._feeds)):
            raise UsageError(
                f"`choice_dataset` yielded {choice!r}, which is none of its {len(self._feeds)} "
                f"data sets. Yield integers from 0 to {len(self._feeds) - 1}."
            )
        return int(choice)

    def get_state(self) -> Any:
        inputs = [feed.get_state() for feed in self._feeds]
        left = sorted(self._left)
        return {"left": left, "choices": self._choices.get_state(), "inputs": inputs}

    def set_state(self, state: Any) -> None:
        self._left = set(state["left"])
        self._choices.set_state(state["choices"])
        for feed, inner in zip(self._feeds, state["inputs"], strict=True):
            feed.set_state(inner)
