"""Batches of rows in memory, of which each worker fetches its own part only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from replicax.data._node import Cursor, Feed, Node, OneByOne, Path
from replicax.data._nodes.batch import Batch
from replicax.data._nodes.select import Skip, Take
from replicax.data._spec import rows_of

if TYPE_CHECKING:
    import numpy as np

    from replicax.data._node import Table


@final
class Unfetched:
    """A batch of rows in memory, to be fetched in parts.

    Args:
        table: Has the rows.
        handles: Their numbers.
    """

    def __init__(self, table: Table, handles: np.ndarray) -> None:
        self._table, self._handles = table, handles

    def __len__(self) -> int:
        return len(self._handles)

    def rows(self, start: int, stop: int) -> Any:
        """Some of the rows, as a batch in memory of its own."""
        if stop > start:
            return self._table.rows(self._handles[start:stop])
        return rows_of(self._table.rows(self._handles[:1]), 0, 0)  # of the shapes of rows

    def ends(self) -> Any:
        """The first row and the last one, as a batch."""
        return self._table.rows(self._handles[[0, -1]])


def in_parts(node: Node) -> Node:
    """A pipeline whose batches are `Unfetched`, if they are of rows in memory.

    Rows that have to be made may be made of random numbers, of which all workers draw as many.
    """
    table = node.input.table if isinstance(node, Batch) else None
    if isinstance(node, Batch) and table is not None and table.row_bytes is not None:
        return InParts(node)
    return node.rebuilt(in_parts) if isinstance(node, Take | Skip) else node


@dataclass(frozen=True, eq=False)
class InParts(Node):
    """The batches of rows in memory, of which who takes a part fetches no more."""

    input: Batch

    @property
    def cardinality(self) -> int:
        return self.input.cardinality

    @property
    def spec(self) -> Any:
        return self.input.spec

    @property
    def batch_size(self) -> int:
        return self.input.size

    def open(self, path: Path) -> Cursor:
        return InPartsCursor(self.input, path)


@final
class InPartsCursor(OneByOne, Cursor):
    """The numbers of the rows of each batch."""

    def __init__(self, node: Batch, path: Path) -> None:
        self._node = node
        self._table: Any = node.input.table
        self._feed = Feed(node.input, path)

    def make(self) -> Any:
        node = self._node
        handles = self._feed.handles(node.size)
        if not len(handles) or (node.drop_remainder and len(handles) < node.size):
            raise StopIteration
        return Unfetched(self._table, handles)

    def skip(self, count: int) -> None:
        self._feed.skip(count * self._node.size)

    def get_state(self) -> Any:
        return self._feed.get_state()

    def set_state(self, state: Any) -> None:
        self._feed.set_state(state)
