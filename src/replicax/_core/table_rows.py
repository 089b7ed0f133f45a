"""The gradient of a table as the rows it has, and what belongs to one row of the table summed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from replicax._core.partial_sums import bound


@dataclass
class Firsts:
    """For each row of a table's gradient, which is the first of those with the same index.

    Args:
        indices: Where each row belongs.
        size: Rows of the table.
        places: What is asked for, once it is known; rows that belong nowhere have a number that is
            too large.
    """

    indices: Any
    size: int
    places: Any = None


@dataclass
class Rows:
    """A sum of rows, each added to zeros where its index says.

    Args:
        scatter: The operation that makes the whole of it.
        zeros: What the rows are added to.
        indices: Where each row belongs.
        updates: The rows.
        firsts: Of the indices; the same for all that have these.
        whole: All of it, once that was asked for.
    """

    scatter: Any
    zeros: Any
    indices: Any
    updates: Any
    firsts: Firsts
    whole: Any = None

    @property
    def may_repeat(self) -> bool:
        return not self.scatter.params["unique_indices"]

    def made_whole(self) -> Any:
        return bound(self.scatter, [self.zeros, self.indices, self.updates])[0]

    def added_to(self, table: Any, sign: Callable[[Any], Any]) -> Any:
        sums = self._sums() if self.may_repeat else self.updates
        return bound(self.scatter, [table, self.indices, sign(sums)])[0]

    def _sums(self) -> Any:
        """The rows, with the sum of those of one index where that is first, and zeros elsewhere."""
        assert self.firsts.places is not None
        rows = self.updates.reshape(self.indices.size, *self.zeros.shape[1:])
        sums = jnp.zeros_like(rows).at[self.firsts.places].add(rows, mode="drop")
        return sums.reshape(self.updates.shape)


def find_firsts(some: Sequence[Firsts]) -> None:
    """Find the first rows of several tables as if these were one: few operations, for all."""
    sizes, counts = [one.size for one in some], [one.indices.size for one in some]
    size, count = sum(sizes), sum(counts)
    kind = jnp.int32 if size <= np.iinfo(np.int32).max else jnp.int64
    if kind is jnp.int64 and len(some) > 1:
        for one in some:
            find_firsts([one])
        return
    starts, begins = np.cumsum([0, *sizes[:-1]]), np.cumsum([0, *counts])
    index = jnp.concatenate([one.indices.reshape(-1) for one in some])
    is_there = (index >= 0) & (index < np.repeat(sizes, counts).astype(kind))
    start = np.repeat(starts, counts).astype(kind)
    index = jnp.where(is_there, index.astype(kind) + start, size)
    first = jnp.full(size, count, jnp.int32)
    first = first.at[index].min(jnp.arange(count, dtype=jnp.int32), mode="drop")
    places = first.at[index].get(mode="fill", fill_value=count)
    places -= np.repeat(begins[:-1], counts).astype(kind)
    for one, begin, end in zip(some, begins.tolist(), begins[1:].tolist(), strict=False):
        one.places = places[begin:end]
