"""Batches, or elements that are not batched, that a user's function made for single replicas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import jax
import numpy as np

from replicax._core.errors import UnbatchedInput
from replicax._input.shares import Share
from replicax._input.source import check_batch, check_structure, has_scalars
from replicax.data._node import Cursor, Feed, Node, OneByOne, Path


@dataclass(frozen=True, eq=False)
class Dealing(Node):
    """Batches that a user's function made for single replicas.

    Args:
        nodes: One for each replica, or one for all, whose batches go to the replicas in turn.
        replicas: How many replicas there are.
    """

    nodes: tuple[Node, ...]
    replicas: int

    def over(self, nodes: Sequence[Node]) -> Dealing:
        """The same over other descriptions of the data sets."""
        return replace(self, nodes=tuple(nodes))

    @property
    def cardinality(self) -> int:
        return -2

    @property
    def spec(self) -> Any:
        return self.nodes[0].spec

    @property
    def full(self) -> tuple[Sequence[int], Sequence[int]] | None:
        """The rows of its replicas in a step of full size, twice; None if they may differ."""
        sizes = [self.nodes[i % len(self.nodes)].batch_size for i in range(self.replicas)]
        known = [size for size in sizes if size == sizes[0] and size is not None]
        return (known, known) if len(known) == self.replicas else None

    def open(self, path: Path) -> Cursor:
        return DealingCursor(self, path)


@final
class DealingCursor(OneByOne, Cursor):
    """One batch per replica; a replica whose data has ended gets empty ones."""

    def __init__(self, node: Dealing, path: Path) -> None:
        self._replicas = node.replicas
        self._feeds = [Feed(inner, path) for inner in node.nodes]
        self._number = 0
        self._structure: Any = None

    def make(self) -> Any:
        pieces = [self._next(replica) for replica in range(self._replicas)]
        given = [piece for piece in pieces if piece is not None]
        if not given:
            raise StopIteration
        if len(given) < len(pieces):
            nothing = _without_rows(given[0], len(given), len(pieces))
            pieces = [nothing if piece is None else piece for piece in pieces]
        return Share(tuple(pieces))

    def _next(self, replica: int) -> Any:
        for batch in self._feeds[replica % len(self._feeds)].elements(1):
            check = check_structure if has_scalars(batch) else check_batch
            self._structure = check(batch, self._number, self._structure)
            self._number += 1
            # A copy: a loader that reuses its buffer would give every replica the last batch.
            return jax.tree.map(np.array, batch)
        return None

    def get_state(self) -> Any:
        return [feed.get_state() for feed in self._feeds]

    def set_state(self, state: Any) -> None:
        for feed, inner in zip(self._feeds, state, strict=True):
            feed.set_state(inner)


def _without_rows(batch: Any, given: int, replicas: int) -> Any:
    """A batch like this one, of no rows, for a replica whose data has ended.

    Raises:
        UnbatchedInput: If it is one element: there is none that counts for nothing.
    """
    if has_scalars(batch):
        raise UnbatchedInput(
            "Elements that are not batched go one to a replica. Received: a last step of "
            f"{given} for {replicas} replicas. The others would compute with numbers that are not "
            "in the data. Batch the data set, or `take` a multiple of the replicas."
        )
    return jax.tree.map(lambda leaf: leaf[:0], batch)
