"""What picks elements out of arrays, and puts others in: `gather`, `where`, `scatter_nd`.

What depends on values for its shape works outside compiled code only, and says so.
"""

from __future__ import annotations

import builtins
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from replicax._core.errors import UsageError
from replicax.tf._calls import (
    array,
    array_function,
    arrays,
    concrete,
    static_shape,
)

__all__ = [
    "boolean_mask", "gather", "gather_nd", "scatter_nd", "slice", "strided_slice",
    "tensor_scatter_nd_add", "tensor_scatter_nd_max", "tensor_scatter_nd_min",
    "tensor_scatter_nd_sub", "tensor_scatter_nd_update", "unravel_index", "where",
]  # fmt: skip


@array_function
def gather(
    params: Any,
    indices: Any,
    validate_indices: Any = None,
    axis: Any = None,
    batch_dims: int = 0,
    name: str | None = None,
) -> Any:
    """The rows that indices name, or what they name along another axis.

    **Differs from TF:** an index that is not there gives NaN, or for integers the smallest number,
    where TensorFlow raises an error or gives 0; compiled code cannot raise one. Of NumPy arrays
    it raises an IndexError.

    Args:
        params: The array.
        indices: Integers of any shape.
        validate_indices: Of no consequence.
        axis: The axis, by default the first behind the batch.
        batch_dims: How many leading axes the two have in common.
        name: Of no consequence.
    """
    xp, (params, indices) = arrays(params, indices)
    batch = batch_dims + (indices.ndim if batch_dims < 0 else 0)
    axis = batch if axis is None else int(axis)
    return _gather(xp, params, indices, axis + (params.ndim if axis < 0 else 0), batch)


def _gather(xp: Any, params: Any, indices: Any, axis: int, batch: int) -> Any:
    if not batch:
        return xp.take(params, indices, axis=axis)
    if xp is np:
        pairs = zip(params, indices, strict=True)
        return np.stack([_gather(xp, own, places, axis - 1, batch - 1) for own, places in pairs])
    return jax.vmap(lambda own, places: _gather(xp, own, places, axis - 1, batch - 1))(
        params, indices
    )


@array_function
def gather_nd(
    params: Any,
    indices: Any,
    batch_dims: int = 0,
    name: str | None = None,
    bad_indices_policy: str = "",
) -> Any:
    """The elements, or the parts, at the places that the last axis of the indices names.

    **Differs from TF:** a place that is not there gives the nearest one; of NumPy arrays it raises
    an IndexError.
    """
    xp, (params, indices) = arrays(params, indices)
    if not batch_dims:
        return params[_places(xp, indices)]
    if xp is np:
        pairs = zip(params, indices, strict=True)
        return np.stack([gather_nd(own, places, batch_dims - 1) for own, places in pairs])
    return jax.vmap(lambda own, places: gather_nd(own, places, batch_dims - 1))(params, indices)


def _places(xp: Any, indices: Any) -> tuple[Any, ...]:
    return tuple(xp.moveaxis(indices, -1, 0))


@array_function
def scatter_nd(
    indices: Any, updates: Any, shape: Any, bad_indices_policy: str = "", name: str | None = None
) -> Any:
    """Zeros, with updates added at the places that the last axis of the indices names."""
    xp, (updates, indices) = arrays(updates, indices)
    return _scattered(xp, xp.zeros(static_shape(shape), updates.dtype), indices, updates, "add")


def _scattered(xp: Any, tensor: Any, indices: Any, updates: Any, how: str) -> Any:
    places = _places(xp, indices)
    updates = updates.astype(tensor.dtype)
    if xp is jnp:
        return getattr(tensor.at[places], how)(updates)
    found = np.array(tensor)
    if how == "set":
        found[places] = updates
    else:
        {"add": np.add, "min": np.minimum, "max": np.maximum}[how].at(found, places, updates)
    return found


@array_function
def tensor_scatter_nd_update(
    tensor: Any, indices: Any, updates: Any, name: str | None = None
) -> Any:
    """The array with updates at the places that the last axis of the indices names."""
    xp, (tensor, indices, updates) = arrays(tensor, indices, updates)
    return _scattered(xp, tensor, indices, updates, "set")


@array_function
def tensor_scatter_nd_add(
    tensor: Any, indices: Any, updates: Any, bad_indices_policy: str = "", name: str | None = None
) -> Any:
    """The array with updates added at the places that the last axis of the indices names."""
    xp, (tensor, indices, updates) = arrays(tensor, indices, updates)
    return _scattered(xp, tensor, indices, updates, "add")


@array_function
def tensor_scatter_nd_sub(
    tensor: Any, indices: Any, updates: Any, bad_indices_policy: str = "", name: str | None = None
) -> Any:
    """The array with updates subtracted at the places that the last axis of the indices names."""
    xp, (tensor, indices, updates) = arrays(tensor, indices, updates)
    return _scattered(xp, tensor, indices, -updates, "add")


@array_function
def tensor_scatter_nd_max(
    tensor: Any, indices: Any, updates: Any, bad_indices_policy: str = "", name: str | None = None
) -> Any:
    """The array with the larger of element and update at the places of the indices."""
    xp, (tensor, indices, updates) = arrays(tensor, indices, updates)
    return _scattered(xp, tensor, indices, updates, "max")


@array_function
def tensor_scatter_nd_min(
    tensor: Any, indices: Any, updates: Any, bad_indices_policy: str = "", name: str | None = None
) -> Any:
    """The array with the smaller of element and update at the places of the indices."""
    xp, (tensor, indices, updates) = arrays(tensor, indices, updates)
    return _scattered(xp, tensor, indices, updates, "min")


@array_function
def boolean_mask(
    tensor: Any, mask: Any, axis: Any = None, name: str | None = "boolean_mask"
) -> Any:
    """The elements where the mask is true; outside compiled code only."""
    xp, x = array(tensor)
    chosen = concrete(mask, "boolean_mask")
    axis = int(axis or 0)
    rows = x.reshape(*x.shape[:axis], chosen.size, *x.shape[axis + chosen.ndim :])
    return xp.take(rows, np.flatnonzero(chosen), axis=axis)


@array_function
def where(condition: Any, x: Any = None, y: Any = None, name: str | None = None) -> Any:
    """Elements of x where the condition is true, else of y; without both, the places where it is.

    The places are known outside compiled code only.

    Raises:
        UsageError: If only one of x and y is given.
    """
    if (x is None) != (y is None):
        raise UsageError(
            "`where` takes both values or none. Received: one of x and y. It is not known what "
            "stands at the other places. Pass the other one, too."
        )
    if x is None:
        xp = array(condition)[0]
        places = np.argwhere(concrete(condition, "where"))
        return places if xp is np else jnp.asarray(places)
    xp, (condition, x, y) = arrays(condition, x, y)
    return xp.where(condition, x, y)


@array_function
def slice(input_: Any, begin: Any, size: Any, name: str | None = None) -> Any:
    """A part of an array: from `begin`, of `size`, where -1 means up to the end.

    The begin may be computed in compiled code, the size not.
    """
    xp, x = array(input_)
    starts = list(begin)
    moving = isinstance(begin, Tracer) or any(isinstance(start, Tracer) for start in starts)
    sizes = static_shape(size)
    if moving:
        lengths = [x.shape[i] if wish == -1 else wish for i, wish in enumerate(sizes)]
        return jax.lax.dynamic_slice(x, starts, lengths)
    starts = static_shape(starts)
    pairs = zip(starts, sizes, strict=True)
    return x[tuple(builtins.slice(a, None if n == -1 else a + n) for a, n in pairs)]


@array_function
def strided_slice(
    input_: Any,
    begin: Any,
    end: Any,
    strides: Any = None,
    begin_mask: int = 0,
    end_mask: int = 0,
    ellipsis_mask: int = 0,
    new_axis_mask: int = 0,
    shrink_axis_mask: int = 0,
    var: Any = None,
    name: str | None = None,
) -> Any:
    """A part of an array with steps, as `input_[begin:end:strides]`; bits of the masks as in TF."""
    _, x = array(input_)
    begin, end = static_shape(begin), static_shape(end)
    steps = (1,) * len(begin) if strides is None else static_shape(strides)
    key: list[Any] = []
    for i, (start, stop, step) in enumerate(zip(begin, end, steps, strict=True)):
        bit = 1 << i
        if ellipsis_mask & bit:
            key.append(...)
        elif new_axis_mask & bit:
            key.append(None)
        elif shrink_axis_mask & bit:
            key.append(start)
        else:
            first, last = (None if begin_mask & bit else start), (None if end_mask & bit else stop)
            key.append(builtins.slice(first, last, step))
    return x[tuple(key)]


@array_function
def unravel_index(indices: Any, dims: Any, name: str | None = None) -> Any:
    """The place in each axis of what stands at an index of the flat array."""
    xp, found = array(indices)
    return xp.stack(xp.unravel_index(found, static_shape(dims))).astype(found.dtype)
