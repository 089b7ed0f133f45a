"""Which of the rows of a table's gradient is the first with its index, and what these sum up to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from replicax._core.table_kernel.firsts import first_places


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


def find_firsts(some: Sequence[Firsts]) -> None:
    """Find the first rows of several tables as if these were one: few operations, for all."""
    sizes, counts = [one.size for one in some], [one.indices.size for one in some]
    size = sum(sizes)
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
    places = first_places(index, size)
    places -= np.repeat(begins[:-1], counts).astype(kind)
    for one, begin, end in zip(some, begins.tolist(), begins[1:].tolist(), strict=False):
        one.places = places[begin:end]


def sums_where_first(rows: Any, firsts: Firsts) -> Any:
    """Rows, with the sum of those of one index where that is first, and zeros elsewhere."""
    assert firsts.places is not None
    by_index = rows.reshape(firsts.indices.size, *rows.shape[firsts.indices.ndim - 1 :])
    return jnp.zeros_like(by_index).at[firsts.places].add(by_index, mode="drop").reshape(rows.shape)
