"""Batches of rows in memory, of which each worker fetches only its part."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from replicax.data._node import Feed, Node, OneByOne, Path, SelectionOfElements
from replicax.data._nodes.ahead import Prefetch
from replicax.data._nodes.batch import Batch
from replicax.data._nodes.select import Skip, Take
from replicax.data._nodes.sources import lent, numbers_of
from replicax.data._spec import rows_of

if TYPE_CHECKING:
    from replicax.data._node import Table

# Batches whose row numbers are made at once, so that workers announce them in one message.
_TOGETHER = 8


@final
class LazyBatch:
    """A batch of rows in memory, to be fetched in parts; their numbers are an array or a range."""

    def __init__(self, table: Table, numbers: Any) -> None:
        self.table, self._numbers = table, numbers
        self._together: Sequence[LazyBatch] = ()

    def __len__(self) -> int:
        return len(self._numbers)

    def rows(self, start: int, stop: int) -> Any:
        """Some rows, for a caller that copies them: they may share the data set's memory."""
        if stop > start:
            return lent(self.table, self._numbers[start:stop])
        return rows_of(lent(self.table, self._numbers[:1]), 0, 0)  # with the shapes of rows

    def with_those_behind(self) -> Sequence[LazyBatch]:
        """This batch and the later ones known with it, if it is the first; else it alone."""
        return self._together or (self,)

    def known_with(self, others: Sequence[LazyBatch]) -> LazyBatch:
        """This batch, which is known together with the later ones."""
        self._together = (self, *others) if others else ()
        return self

    @property
    def ends(self) -> tuple[Any, Any]:
        """The numbers of the first row and the last one."""
        return self._numbers[0], self._numbers[-1]


def ends_of(batches: Sequence[LazyBatch]) -> list[Any]:
    """For each of these batches of one table, its first and last row as a batch."""
    numbers = np.array([number for batch in batches for number in batch.ends])
    rows = batches[0].table.rows(numbers)
    return [rows_of(rows, place, place + 2) for place in range(0, len(numbers), 2)]


def in_parts(node: Node, together: int = _TOGETHER) -> Node:
    """A pipeline whose batches are `LazyBatch`, if they are of rows in memory.

    Row numbers of `together` batches are made at once. Rows that have to be made may be made of
    random numbers, of which all workers draw as many.
    """
    if isinstance(node, Batch) and _row_bytes(node) is not None:
        return PartialFetch(node, together)
    if isinstance(node, Take):  # so that workers hear of no batch that is not taken
        return node.rebuilt(lambda inner: in_parts(inner, 1))
    through = isinstance(node, Skip | Prefetch)
    return node.rebuilt(lambda inner: in_parts(inner, together)) if through else node


def bytes_in_memory(node: Node) -> int | None:
    """The bytes of a batch, if a pipeline makes batches of rows in memory."""
    if isinstance(node, Take | Skip | Prefetch):
        return bytes_in_memory(node.input)
    if not isinstance(node, Batch):
        return None
    row_bytes = _row_bytes(node)
    return None if row_bytes is None else row_bytes * node.size


def _row_bytes(node: Batch) -> int | None:
    """The bytes of a row, if the batches are of rows in memory."""
    table = node.input.table
    return None if table is None else table.row_bytes


@final
class PartialFetchCursor(OneByOne):
    """The numbers of the rows of each batch."""

    def __init__(self, node: PartialFetch, path: Path) -> None:
        self._node = node.input
        self._together = node.together
        self._table: Any = self._node.input.table
        self._feed = Feed(self._node.input, path)
        self._ready: deque[LazyBatch] = deque()
        self._taken = 0  # rows of the batches given out

    def make(self) -> Any:
        batch = self._ready.popleft() if self._ready else self._begin_next()
        self._taken += len(batch)
        return batch

    def _begin_next(self) -> LazyBatch:
        size = self._node.size
        handles = self._feed.handles(self._together * size)
        if self._node.drop_remainder:
            handles = handles[: len(handles) // size * size]
        if not len(handles):
            raise StopIteration
        numbers, starts = numbers_of(self._table, handles), range(0, len(handles), size)
        first, *others = [LazyBatch(self._table, numbers[i : i + size]) for i in starts]
        self._ready.extend(others)
        return first.known_with(others)

    def skip(self, count: int) -> None:
        while count and self._ready:
            self._taken += len(self._ready.popleft())
            count -= 1
        self._feed.skip(count * self._node.size)
        self._taken += count * self._node.size

    def get_state(self) -> Any:
        return self._taken

    def set_state(self, state: Any) -> None:
        self._feed.set_state(state)
        self._taken = state


@dataclass(frozen=True, eq=False)
class PartialFetch(SelectionOfElements):
    """The batches of rows in memory, of which a worker fetches only its part."""

    cursor = PartialFetchCursor
    input: Batch
    together: int = 1
