"""The first element of a pass, heard of when it is made: long before a batch of them is full."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, final

import jax

from replicax.data._node import Cursor, Feed, Handles, Node, Path
from replicax.data._nodes.ahead import Ahead, Prefetch
from replicax.data._nodes.batch import Batch, PaddedBatch
from replicax.data._nodes.repeat import Repeat
from replicax.data._nodes.select import Selection, Shard, ShardHint, Skip, Take
from replicax.data._nodes.shuffle import Shuffle
from replicax.data._spec import ArraySpec, num_rows, own_copy, spec_of

# Where the elements of the input go on as they are, or in batches.
_GATHERING = (Batch, PaddedBatch, Prefetch, Repeat, Shard, ShardHint, Shuffle, Skip, Take)


@final
class First:
    """What the first element looks like; told by the thread that reads, asked for by another."""

    def __init__(self) -> None:
        self.spec: Any = None
        self._is_known = threading.Event()

    def tell(self, element: Any) -> None:
        """This is the first element, unless there was one."""
        if not self._is_known.is_set():
            self.spec = spec_of(element)
            self._is_known.set()

    def give_up(self) -> None:
        """Nobody has told, and nobody will."""
        self._is_known.set()

    def wait(self) -> None:
        """Wait until `spec` is known, or will never be."""
        self._is_known.wait()


@dataclass(frozen=True, eq=False)
class Noticed(Selection, Node):
    """The elements as they are; of the first one somebody hears."""

    input: Node
    first: First

    @property
    def spec(self) -> Any:
        return self.first.spec

    @property
    def cardinality(self) -> int:
        return self.input.cardinality

    def open(self, path: Path) -> Cursor:
        return NoticedCursor(self.input.open(path), self.first)


@final
class NoticedCursor(Cursor):
    """Reads the first element by itself: what comes behind it may take long."""

    def __init__(self, source: Cursor, first: First) -> None:
        self._source = source
        self._first: First | None = first

    def read(self, count: int) -> Handles:
        if self._first is None:
            return self._source.read(count)
        found = list(self._source.read(min(count, 1)))
        if found:
            self._first.tell(found[0])
            self._first = None
        return [*found, *self._source.read(count - 1)] if count > 1 else found

    def skip(self, count: int) -> None:
        self._source.skip(count)

    def get_state(self) -> Any:
        return self._source.get_state()

    def set_state(self, state: Any) -> None:
        self._source.set_state(state)


def _with_notice(node: Node, first: First) -> Node:
    """A pipeline with a `Noticed` where its elements are made, before they wait for others."""
    if node.table is not None:  # rows in memory, which are there at once
        return node
    if isinstance(node, _GATHERING):
        return node.rebuilt(lambda inner: _with_notice(inner, first))
    return Noticed(node, first)


@final
class Arriving(Iterator[Any]):
    """Batches that a thread reads ahead; what the first will look like may be known before.

    Args:
        node: What is read.
        path: Which pass.
        size: How many batches wait at most.
    """

    def __init__(self, node: Node, path: Path, size: int) -> None:
        self._first = first = First()
        self._node = _with_notice(node, first)
        produce = batches_of(Feed(self._node, path))

        def make() -> Any:
            try:
                return produce()
            finally:
                first.give_up()

        self._ahead = Ahead(make, lambda: None, size)

    def __next__(self) -> Any:
        return next(self._ahead)

    def coming(self) -> Any:
        """Begin to read, and say what the first batch looks like, if that is known before it is.

        Returns:
            An `ArraySpec` for each of its arrays; None if the batch is there, or was taken.
        """
        self._ahead.begin()
        self._first.wait()
        node = self._node
        if self._first.spec is None or self._ahead.has_made or node.cardinality == 1:
            return None
        found = jax.tree.map(lambda leaf: _with_rows(leaf, node.batch_size), node.spec)
        return found if all(map(_is_whole, jax.tree.leaves(found))) else None


def batches_of(feed: Feed) -> Callable[[], Any]:
    """A function that makes the next batch of a feed, in memory of its own."""

    def make() -> Any:
        for batch in feed.elements(1):
            num_rows(batch)
            return own_copy(batch)
        raise StopIteration

    return make


def _with_rows(leaf: ArraySpec, rows: int | None) -> ArraySpec:
    """A spec of a batch that is full."""
    if not leaf.shape or leaf.shape[0] is not None:
        return leaf
    return dataclasses.replace(leaf, shape=(rows, *leaf.shape[1:]))


def _is_whole(leaf: ArraySpec) -> bool:
    """Whether all is known of an array of numbers."""
    is_number = getattr(leaf.dtype, "kind", "O") != "O"  # text has no kind
    return is_number and leaf.shape is not None and None not in leaf.shape
