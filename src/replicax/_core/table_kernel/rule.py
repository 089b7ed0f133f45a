"""The rules of XLA:CPU for whole rows that are looked up in a table, or added to one: the kernel.

What is looked up, clamped, filled and added, and in which order, is as in JAX, to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.lax import GatherScatterMode as _Mode

from replicax._core import lowering
from replicax._core.handlers.one_device import is_on_one_device
from replicax._core.rows import adds_rows
from replicax._core.table_kernel.firsts import MOST_ROWS
from replicax._cpu import kernels
from replicax._cpu.kernels import ADD_ROWS, LOOK_UP

# Of what is looked up or added: fewer numbers are computed with what comes before or after.
_LEAST = 4096

_LOOK_UP = jax.ffi.ffi_lowering(LOOK_UP)
_ADD = jax.ffi.ffi_lowering(ADD_ROWS, operand_output_aliases={0: 0})


def install() -> None:
    """Let tables of our programs for CPUs go to the kernel."""
    lowering.choose_rule(lax.gather_p, "tables", _choose_look_up, kernels=[LOOK_UP])
    lowering.choose_rule(lax.scatter_add_p, "tables", _choose_adding, kernels=[ADD_ROWS])


def is_for_kernel(table: Any, indices: Any, rows: Any) -> bool:
    """Whether the kernel knows arrays like these: a table, indices of its rows, and such rows."""
    known = table.dtype == rows.dtype == np.float32 and indices.dtype == np.int32
    return (
        known
        and table.ndim > 0
        and indices.shape[-1:] == (1,)
        and rows.shape == (*indices.shape[:-1], *table.shape[1:])
        and rows.size > 0
        and table.size > 0
        and indices.size <= MOST_ROWS
    )


def _is_worth_it(ctx: Any, table: Any, indices: Any, rows: Any) -> bool:
    """Whether the kernel is used."""
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
    # What is promised is clamped as well, as XLA does it: a promise may be broken.
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
