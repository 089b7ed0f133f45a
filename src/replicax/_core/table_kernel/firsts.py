"""Where in a list of indices each of them is first, as one operation of JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax._core.cpu_tuning import is_on
from replicax._core.handlers.operation import operation
from replicax._cpu import kernels
from replicax._cpu.kernels import FIRST_ROWS

# It numbers twice as many places in 32 bits.
MOST_ROWS = 1 << 29


def first_places(indices: Any, size: int) -> Any:
    """For each index the place of the first that is the same; for one of `size` the end.

    Args:
        indices: From 0 to `size`.
        size: How many indices there can be.
    """
    return _first_places.bind(indices, size=size)


def _formula(indices: Any, *, size: int) -> Any:
    count = len(indices)
    first = jnp.full(size, count, jnp.int32)
    first = first.at[indices].min(jnp.arange(count, dtype=jnp.int32), mode="drop")
    return first.at[indices].get(mode="fill", fill_value=count)


_by_kernel = jax.ffi.ffi_lowering(FIRST_ROWS)


def _choose(ctx: Any, *, size: int) -> Callable[..., Any] | None:
    """The kernel. Where JAX divides, each device gets all indices, which are few."""
    indices = ctx.avals_in[0]
    fits = indices.dtype == np.int32 and indices.size <= MOST_ROWS
    if not fits or not is_on("tables") or not kernels.are_there():
        return None
    numbers = np.array((size,), np.int64)
    return lambda ctx, indices, **_: _by_kernel(ctx, indices, numbers=numbers)


def _types(indices: Any, **_: Any) -> Any:
    return indices.update(dtype=np.dtype("int32"))


_first_places = operation("first_places", _formula, _types, _choose, kernels=[FIRST_ROWS])
