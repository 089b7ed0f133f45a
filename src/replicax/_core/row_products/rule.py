"""The rule of XLA:CPU for a product of JAX that sums over many rows: the kernel, where it pays."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.interpreters import mlir

from replicax._core import lowering
from replicax._core.handlers.one_device import is_on_one_device
from replicax._core.products import is_plain
from replicax._cpu import kernels
from replicax._cpu.kernels import ROW_PRODUCTS

_LEAST_ROWS = 1024
_VECTOR, _WIDEST = 16, 128  # widths are multiples of the one and at most the other


def install() -> None:
    """Let such products of our programs for CPUs go to the kernel."""
    lowering.choose_rule(lax.dot_general_p, "products", _choose, kernels=[ROW_PRODUCTS])


def _choose(ctx: Any, **params: Any) -> Callable[..., Any] | None:
    """The rule for a product that the kernel computes."""
    here = is_on_one_device(ctx.module_context)
    return _RULE if here and covers(*ctx.avals_in, **params) and kernels.are_there() else None


def covers(left: Any, right: Any, *, dimension_numbers: Any, **params: Any) -> bool:
    """Whether a product sums over the rows of two arrays that have many, and few columns."""
    contracted, batch = dimension_numbers
    rows = tuple(range(len(contracted[0])))
    if any(map(len, batch)) or any(tuple(axes) != rows for axes in contracted):
        return False
    types = {left.dtype, right.dtype, np.dtype(params["preferred_element_type"] or np.float32)}
    if types != {np.dtype(np.float32)} or not is_plain(params):
        return False
    widths = [math.prod(array.shape[len(rows) :]) for array in (left, right)]
    fit = all(width % _VECTOR == 0 and 0 < width <= _WIDEST for width in widths)
    return fit and math.prod(left.shape[: len(rows)]) >= _LEAST_ROWS


def _compute(left: Any, right: Any, *, dimension_numbers: Any, **_: Any) -> Any:
    axes = len(dimension_numbers[0][0])
    widths = [array.shape[axes:] for array in (left, right)]
    matrices = [
        array.reshape(-1, math.prod(width))
        for array, width in zip((left, right), widths, strict=True)
    ]
    shape = jax.ShapeDtypeStruct([math.prod(width) for width in widths], np.float32)
    return jax.ffi.ffi_call(ROW_PRODUCTS, shape)(*matrices).reshape(*widths[0], *widths[1])


_RULE = mlir.lower_fun(_compute, multiple_results=False)
