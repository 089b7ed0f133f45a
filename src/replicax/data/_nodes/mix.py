"""Several data sets as one: side by side, one after the other, mixed, or made by a function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, final

import jax
import numpy as np

from replicax._core.errors import UsageError
from replicax.data._node import (
    INFINITE_CARDINALITY,
    UNKNOWN_CARDINALITY,
    Cursor,
    Feed,
    Handles,
    Node,
    OneByOne,
    Path,
    Table,
    added,
    drawn_seeds,
    filtered,
    joined_handles,
    open_elements,
    with_seeds,
)
from replicax.data._nodes.ahead import Prefetch
from replicax.data._nodes.map import call
from replicax.data._nodes.sources import (
    UnionTable,
    ZipTable,
    beside,
    tagged,
)
from replicax.data._spec import common_spec


@dataclass(frozen=True, eq=False)
class Several(Node):
    """A node over several nodes, whose elements are like theirs unless it says otherwise."""

    nodes: tuple[Node, ...]

    @property
    def spec(self) -> Any:
        # Nodes without elements do not count.
        known: list[Any] = []
        unknown: list[UsageError] = []
        for node in self.nodes:
            try:
                known.append(node.spec)
            except UsageError as error:
                unknown.append(error)
        if not known:
            raise unknown[0]
        return common_spec(known)

    @property
    def batch_size(self) -> int | None:
        sizes = {node.batch_size for node in self.nodes}
        return sizes.pop() if len(sizes) == 1 else None


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


@dataclass(frozen=True, eq=False)
class Zip(Several):
    """Elements of several nodes side by side, in a nest; ends with the shortest."""

    cursor = ZipCursor

    tree: Any

    @property
    def cardinality(self) -> int:
        sizes = {node.cardinality for node in self.nodes} - {INFINITE_CARDINALITY}
        if UNKNOWN_CARDINALITY in sizes:
            return 0 if 0 in sizes else UNKNOWN_CARDINALITY
        return min(sizes, default=INFINITE_CARDINALITY)

    @property
    def spec(self) -> Any:
        return jax.tree.unflatten(self.tree, [node.spec for node in self.nodes])

    @property
    def table(self) -> ZipTable | None:
        parts: list[Table] = [node.table for node in self.nodes if node.table is not None]
        return ZipTable(tuple(parts), self.tree) if len(parts) == len(self.nodes) else None


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
class Concatenate(Several):
    """The elements of several nodes, one node after the other."""

    cursor = ConcatenateCursor

    @property
    def cardinality(self) -> int:
        return added(node.cardinality for node in self.nodes)

    @property
    def table(self) -> UnionTable | None:
        tables = [node.table for node in self.nodes]
        parts = tuple(table for table in tables if table is not None)
        return UnionTable(parts) if len(parts) == len(tables) else None


@final
class SampledCursor(OneByOne):
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
class Sampled(Several):
    """Each element from a node drawn by its weight."""

    cursor = SampledCursor

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
            return added(sizes)
        alike = set(sizes) in ({0}, {INFINITE_CARDINALITY})
        return sizes[0] if alike else UNKNOWN_CARDINALITY


@final
class ChosenCursor(OneByOne):
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


@dataclass(frozen=True, eq=False)
class Chosen(Several):
    """Each element from the node whose number `choices` says."""

    cursor = ChosenCursor

    choices: Node
    stop_on_empty: bool

    @property
    def cardinality(self) -> int:
        sizes = {node.cardinality for node in self.nodes}
        if sizes == {INFINITE_CARDINALITY}:
            return self.choices.cardinality
        return 0 if sizes == {0} else UNKNOWN_CARDINALITY


# Elements that a thread reads at a time for one of the open data sets.
_PORTION = 32


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


@dataclass(frozen=True, eq=False)
class Interleave(Node):
    """`block` elements in turn from each of `cycle` data sets that `fn` makes of the elements.

    With a cycle of one it is `flat_map`. `ahead` data sets are read by threads. Random
    transformations in `fn` without a seed get theirs from `seed`: drawn ones would differ between
    workers, and after a position.
    """

    cursor = InterleaveCursor

    seeded: ClassVar[bool] = False

    input: Node
    fn: Callable[..., Any]
    seed: int
    cycle: int = 1
    block: int = 1
    ahead: bool = False

    @property
    def cardinality(self) -> int:
        return filtered(self.input.cardinality)

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
