"""Embedding tables on CPUs: a kernel looks rows up, sums them, and adds them to a table.

XLA compiles several small kernels for each table of a model, which takes longer than many of its
steps; `src/tables.c` is compiled once. It has rules for JAX's operations that look up or add whole
rows. Clamping, filling and the order of additions are as in JAX, to the last bit.

Two operations are ours. One finds the first place of each index in a list. The other adds sums of
rows to a table, for an optimizer. Rows with the same index are summed first, as in a whole
gradient: added one by one, frequent rows would lose much of their update to rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.lax import GatherScatterMode as _Mode

from replicax._cpu import kernels, lowering
from replicax._cpu.kernels import ADD_ROWS, ADD_SUMS, FIRST_ROWS, LOOK_UP
from replicax._cpu.lowering import is_on_one_device, operation, varying_alike
from replicax._cpu.tuning import is_on

# Indices: the kernel numbers twice as many places in 32 bits.
_MOST_ROWS = 1 << 29
# Elements looked up or added: XLA fuses smaller ones with the operations before or after.
_LEAST = 4096

_LOOK_UP = jax.ffi.ffi_lowering(LOOK_UP)
_ADD = jax.ffi.ffi_lowering(ADD_ROWS, operand_output_aliases={0: 0})
_ADD_SUMS = jax.ffi.ffi_lowering(ADD_SUMS, operand_output_aliases={0: 0})
_FIRST_ROWS = jax.ffi.ffi_lowering(FIRST_ROWS)


def is_for(platform: str) -> bool:
    """Whether there is a kernel for programs on this platform."""
    return is_on("tables") and platform == "cpu" and kernels.are_there()


def install() -> None:
    """Register the kernel for tables in our programs on CPUs."""
    lowering.choose_rule(lax.gather_p, "tables", _choose_look_up, kernels=[LOOK_UP])
    lowering.choose_rule(lax.scatter_add_p, "tables", _choose_adding, kernels=[ADD_ROWS])


def adds_rows(table: Any, indices: Any, rows: Any, *, dimension_numbers: Any, **_: Any) -> bool:
    """Whether a scatter adds whole rows."""
    dims, batch = dimension_numbers, indices.ndim - 1
    of_rows = (tuple(range(batch, rows.ndim)), (0,), (0,), ())
    return rows.shape == (*indices.shape[:-1], *table.shape[1:]) and of_rows == (
        dims.update_window_dims,
        dims.inserted_window_dims,
        dims.scatter_dims_to_operand_dims,
        dims.operand_batching_dims,
    )


def is_for_kernel(table: Any, indices: Any, rows: Any) -> bool:
    """Whether the kernel takes arrays of these shapes and dtypes."""
    known = table.dtype == rows.dtype == np.float32 and indices.dtype == np.int32
    return (
        known
        and table.ndim > 0
        and indices.shape[-1:] == (1,)
        and rows.shape == (*indices.shape[:-1], *table.shape[1:])
        and rows.size > 0
        and table.size > 0
        and indices.size <= _MOST_ROWS
    )


def _is_worth_it(ctx: Any, table: Any, indices: Any, rows: Any) -> bool:
    """Whether the kernel can be used, and there are enough elements."""
    here = is_on_one_device(ctx.module_context)
    fit = rows.size >= _LEAST and is_for_kernel(table, indices, rows)
    return here and fit and kernels.are_there()


def _choose_look_up(ctx: Any, **params: Any) -> Callable[..., Any] | None:
    (table, indices), (rows,) = ctx.avals_in, ctx.avals_out
    dims, row = params["dimension_numbers"], table.ndim - 1
    of_rows = (tuple(range(rows.ndim - row, rows.ndim)), (0,), (0,), ())
    is_look_up = of_rows == (
        dims.offset_dims,
        dims.collapsed_slice_dims,
        dims.start_index_map,
        dims.operand_batching_dims,
    )
    if not is_look_up or tuple(params["slice_sizes"]) != (1, *table.shape[1:]):
        return None
    if not _is_worth_it(ctx, table, indices, rows):
        return None
    # PROMISE_IN_BOUNDS is clamped as well, as in XLA: the promise may be broken.
    fill = np.float32(np.nan if params["fill_value"] is None else params["fill_value"])
    numbers = np.array((params["mode"] != _Mode.FILL_OR_DROP, fill.view(np.int32)), np.int64)
    return lambda ctx, *operands, **_: _LOOK_UP(ctx, *operands, numbers=numbers)


def _choose_adding(ctx: Any, **params: Any) -> Callable[..., Any] | None:
    table, indices, rows = ctx.avals_in
    if not adds_rows(table, indices, rows, **params):
        return None
    if not _is_worth_it(ctx, table, indices, rows):
        return None
    numbers = np.array((params["mode"] == _Mode.CLIP,), np.int64)
    return lambda ctx, *operands, **_: _ADD(ctx, *operands, numbers=numbers)


def first_places(indices: Any, size: int) -> Any:
    """For each index the place of its first occurrence; for the index `size` the end.

    Indices are from 0 to `size`.
    """
    return _FIRSTS.bind(indices, size=size)


def _first_places(indices: Any, *, size: int) -> Any:
    count = len(indices)
    first = jnp.full(size, count, jnp.int32)
    first = first.at[indices].min(jnp.arange(count, dtype=jnp.int32), mode="drop")
    return first.at[indices].get(mode="fill", fill_value=count)


def _choose_firsts(ctx: Any, *, size: int) -> Callable[..., Any] | None:
    """The kernel, also where JAX divides arrays: each device gets all indices, which are few."""
    indices = ctx.avals_in[0]
    fits = indices.dtype == np.int32 and indices.size <= _MOST_ROWS
    if not fits or not is_on("tables") or not kernels.are_there():
        return None
    numbers = np.array((size,), np.int64)
    return lambda ctx, indices, **_: _FIRST_ROWS(ctx, indices, numbers=numbers)


def _type_of_places(indices: Any, **_: Any) -> Any:
    return indices.update(dtype=np.dtype("int32"))


_FIRSTS = operation(
    "first_places", _first_places, _type_of_places, _choose_firsts, kernels=[FIRST_ROWS]
)


@dataclass
class Firsts:
    """For each row of a table's gradient, the first row with the same index.

    The table has `size` rows. `places` is set by `find_firsts`; rows whose index is outside the
    table get a place that is too large.
    """

    indices: Any
    size: int
    places: Any = None


def find_firsts(some: Sequence[Firsts]) -> None:
    """Find the first rows of several tables as if they were one table: few operations for all."""
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
    """The sum of the rows with the same index at the index' first place, and zeros elsewhere."""
    assert firsts.places is not None
    by_index = rows.reshape(firsts.indices.size, *rows.shape[firsts.indices.ndim - 1 :])
    return jnp.zeros_like(by_index).at[firsts.places].add(by_index, mode="drop").reshape(rows.shape)


def add_sums(table: Any, indices: Any, rows: Any, *, subtracts: bool) -> Any:
    """Add sums of rows to a `float32` table, or subtract them, but for indices outside it."""
    return _ADDED.bind(*varying_alike(table, indices, rows), subtracts=subtracts)


def _add_sums(table: Any, indices: Any, rows: Any, *, subtracts: bool) -> Any:
    firsts = Firsts(indices, len(table))
    find_firsts([firsts])
    sums = sums_where_first(rows, firsts)
    at = table.at[indices[..., 0]]
    return at.add(-sums if subtracts else sums, mode="drop", wrap_negative_indices=False)


def _choose_adding_sums(ctx: Any, *, subtracts: bool) -> Callable[..., Any] | None:
    """The kernel, unless JAX divides arrays over devices."""
    if not is_on_one_device(ctx.module_context):
        return None
    numbers = np.array((subtracts,), np.int64)
    return lambda ctx, *operands, **_: _ADD_SUMS(ctx, *operands, numbers=numbers)


_ADDED = operation(
    "add_sums",
    _add_sums,
    lambda table, *_, **__: table,
    _choose_adding_sums,
    kernels=[ADD_SUMS],
)
