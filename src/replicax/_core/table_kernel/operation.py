"""What an optimizer adds to a table as one operation of JAX: sums of rows, each added once.

A sum of rows with the same index is made first, as a whole gradient would be: what occurs often
would else lose much of its update to rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from replicax._core.cpu_tuning import is_on
from replicax._core.first_rows import Firsts, find_firsts, sums_where_first
from replicax._core.handlers.one_device import is_on_one_device, varying_alike
from replicax._core.handlers.operation import operation
from replicax._cpu import kernels
from replicax._cpu.kernels import ADD_SUMS_OF_ROWS


def is_for(platform: str) -> bool:
    """Whether there is a kernel for programs of such devices."""
    return is_on("tables") and platform == "cpu" and kernels.are_there()


def add_sums(
    table: Any, indices: Any, rows: Any, factor: Any, *, column: int, subtracts: bool
) -> Any:
    """A table with the sums of its rows added.

    Args:
        table: Of `float32`.
        indices: Where each row belongs; what is outside of the table is left out.
        rows: What is added up, maybe beside rows of other tables.
        factor: What each row is multiplied with, before.
        column: Of the array of rows, with which those of this table begin.
        subtracts: Whether sums are subtracted, not added.
    """
    operands = varying_alike(table, indices, rows, jnp.asarray(factor, table.dtype))
    return _add_sums.bind(*operands, column=column, subtracts=subtracts)


def _formula(
    table: Any, indices: Any, rows: Any, factor: Any, *, column: int, subtracts: bool
) -> Any:
    if rows.shape[indices.ndim - 1 :] != table.shape[1:]:
        rows = lax.slice_in_dim(rows, column, column + table.shape[1], axis=rows.ndim - 1)
    firsts = Firsts(indices, len(table))
    find_firsts([firsts])
    sums = sums_where_first(rows * factor, firsts)
    at = table.at[indices[..., 0]]
    return at.add(-sums if subtracts else sums, mode="drop", wrap_negative_indices=False)


_by_kernel = jax.ffi.ffi_lowering(ADD_SUMS_OF_ROWS, operand_output_aliases={0: 0})


def _choose(ctx: Any, *, column: int, subtracts: bool) -> Callable[..., Any] | None:
    """The kernel, but not where JAX divides."""
    if not is_on_one_device(ctx.module_context):
        return None
    numbers = np.array((subtracts, column), np.int64)
    return lambda ctx, *operands, **_: _by_kernel(ctx, *operands, numbers=numbers)


_add_sums = operation(
    "add_sums_of_rows", _formula, lambda table, *_, **__: table, _choose, kernels=[ADD_SUMS_OF_ROWS]
)
