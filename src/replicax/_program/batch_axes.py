"""The batch axis of each value of a jaxpr, and the operations that sum over it.

A wrong guess costs time, never correctness: a sum may be sharded along any axis that it is taken
over.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax.lax import GatherScatterMode as _Mode

from replicax._cpu.lowering import has_known_sizes
from replicax._cpu.tables import adds_rows

Axis = int | None  # the batch axis; None if there is none, or it is unknown


def axes_of_results(equation: Any, rows: Sequence[Axis]) -> list[Axis]:
    """The batch axis of each result of an operation, from the batch axis of each operand."""
    found = _RULES.get(equation.primitive.name, _same_axis)
    return [found(equation, rows, out.aval.shape) for out in equation.outvars]


def summed_axes(equation: Any, rows: Sequence[Axis]) -> list[Axis] | None:
    """The axis of each operand that an operation sums over, if it sums over rows.

    The axis is None for an operand to which the sum is added.
    """
    name, params = equation.primitive.name, equation.params
    if name == "reduce_sum":
        return [rows[0]] if rows[0] in params["axes"] else None
    if name == "dot_general":
        (left, right), _ = params["dimension_numbers"]
        pairs = list(zip(left, right, strict=True))
    elif name == "conv_general_dilated":
        if params["feature_group_count"] > 1 or params["batch_group_count"] > 1:
            return None
        dims = params["dimension_numbers"]
        pairs = [(dims.lhs_spec[1], dims.rhs_spec[1])]
    elif name == "scatter-add":
        if pays_to_gather(equation, 1):  # table_gradients.py gathers the rows instead
            return None
        return _scatter_axes(params["dimension_numbers"], rows, equation.invars[2].aval.ndim)
    else:
        return None
    both = [pair for pair in pairs if rows[0] == pair[0] or rows[1] == pair[1]]
    return list(both[0]) if both else None


def pays_to_gather(scatter: Any, replicas: int) -> bool:
    """Whether exchanging the rows to add costs less than exchanging a table of their sums.

    Each replica has as many rows.
    """
    table, _, updates = (atom.aval for atom in scatter.invars)
    # Factor 2: each replica then adds the rows of all replicas, which an all-reduce would not.
    return is_table_gradient(scatter) and 2 * replicas * updates.size <= table.size


def is_table_gradient(scatter: Any) -> bool:
    """Whether a scatter-add is a table's gradient: known shapes, whole rows, drops outside ids."""
    arrays = [atom.aval for atom in scatter.invars]
    numbers = jnp.issubdtype(arrays[2].dtype, jnp.floating) and arrays[1].ndim > 1
    outside = scatter.params["mode"] in (_Mode.FILL_OR_DROP, _Mode.PROMISE_IN_BOUNDS)
    known = has_known_sizes(*arrays)
    return known and numbers and outside and adds_rows(*arrays, **scatter.params)


def _scatter_axes(dims: Any, rows: Sequence[Axis], ndim: int) -> list[Axis] | None:
    """The axes of a scatter-add of rows, such as the gradient of an embedding."""
    scattered = [axis for axis in range(ndim) if axis not in dims.update_window_dims]
    if rows[0] is not None or rows[2] not in scattered or dims.operand_batching_dims:
        return None
    return [None, scattered.index(rows[2]), rows[2]]


def _same_axis(equation: Any, rows: Sequence[Axis], shape: Sequence[int]) -> Axis:
    """The axis of an operand, if the result is as long there: most operations keep the axes."""
    for operand, axis in zip(equation.invars, rows, strict=True):
        if axis is not None and len(shape) > axis and shape[axis] == operand.aval.shape[axis]:
            return axis
    return None


def _broadcast(equation: Any, rows: Sequence[Axis], shape: Sequence[int]) -> Axis:
    return None if rows[0] is None else int(equation.params["broadcast_dimensions"][rows[0]])


def _transposed(equation: Any, rows: Sequence[Axis], shape: Sequence[int]) -> Axis:
    return None if rows[0] is None else equation.params["permutation"].index(rows[0])


def _reshaped(equation: Any, rows: Sequence[Axis], shape: Sequence[int]) -> Axis:
    """The axis that starts with the rows; other axes may have been merged into it."""
    axis, before = rows[0], equation.invars[0].aval.shape
    if axis is None:
        return None
    outer, length = math.prod(before[:axis]), 1 if before[axis] == 0 else before[axis]
    for place in range(len(shape)):
        if math.prod(shape[:place]) == outer and shape[place] and not shape[place] % length:
            return place
    return None


def _axes_removed(equation: Any, rows: Sequence[Axis], shape: Sequence[int]) -> Axis:
    gone = equation.params["axes" if "axes" in equation.params else "dimensions"]
    if rows[0] is None or rows[0] in gone:
        return None
    return rows[0] - sum(axis < rows[0] for axis in gone)


def _dot_general(equation: Any, rows: Sequence[Axis], shape: Sequence[int]) -> Axis:
    """A result has the batch axes first, then the free axes of the left and right operand."""
    contracted, batched = equation.params["dimension_numbers"]
    free = []
    for operand, gone, together in zip(equation.invars, contracted, batched, strict=True):
        free.append([a for a in range(operand.aval.ndim) if a not in (*gone, *together)])
    places = [[*batched[0], *free[0]], [*batched[1], *[None] * len(free[0]), *free[1]]]
    for axis, place in zip(rows, places, strict=True):
        if axis is not None and axis in place:
            return place.index(axis)
    return None


def _convolution(equation: Any, rows: Sequence[Axis], shape: Sequence[int]) -> Axis:
    dims = equation.params["dimension_numbers"]
    if rows[0] == dims.lhs_spec[0]:
        return dims.out_spec[0]
    return dims.out_spec[1] if rows[1] == dims.rhs_spec[0] else None


_RULES = {
    "broadcast_in_dim": _broadcast,
    "transpose": _transposed,
    "reshape": _reshaped,
    "dot_general": _dot_general,
    "conv_general_dilated": _convolution,
    **dict.fromkeys(("squeeze", "argmax", "argmin"), _axes_removed),
    **{f"reduce_{how}": _axes_removed for how in ("and", "max", "min", "or", "prod", "sum")},
}
