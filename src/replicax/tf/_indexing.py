"""Functions that pick, replace or order elements of arrays: `gather`, `where`, `sort`.

A function whose shape depends on values works outside compiled code only, and says so.
"""

from __future__ import annotations

import builtins
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from replicax._core.errors import UsageError
from replicax._core.lookup import check_places, host_value
from replicax.tf._calls import (
    apart,
    array,
    array_function,
    arrays,
    concrete,
    numpy_dtype,
    published,
    static_shape,
    static_size,
)
from replicax.tf._dtypes import int32
from replicax.tf._flow.tensor_array import Unwritten

newaxis = None


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
    in compiled code and on accelerators, where TensorFlow raises an error or gives 0. Elsewhere it
    is an error. A negative index counts from the end.
    """
    xp, (params, indices) = apart(params, indices)
    batch = batch_dims + (indices.ndim if batch_dims < 0 else 0)
    axis = batch if axis is None else int(axis)
    if -params.ndim <= axis < params.ndim:
        size = params.shape[axis]
        check_places([indices], [size], least=-size)
    return _gather(xp, params, indices, axis + (params.ndim if axis < 0 else 0), batch)


def _gather(xp: Any, params: Any, indices: Any, axis: int, batch: int) -> Any:
    if not batch:
        return xp.take(params, indices, axis=axis)
    of_one = functools.partial(_gather, xp, axis=axis - 1, batch=batch - 1)
    return _of_each(xp, of_one, params, indices)


def _of_each(xp: Any, pick: Callable[[Any, Any], Any], params: Any, indices: Any) -> Any:
    if xp is np:
        return np.stack([pick(*pair) for pair in zip(params, indices, strict=True)])
    return jax.vmap(pick)(params, indices)


@array_function
def gather_nd(
    params: Any,
    indices: Any,
    batch_dims: int = 0,
    name: str | None = None,
    bad_indices_policy: str = "",
) -> Any:
    """The elements, or the parts, at the places that the last axis of the indices names.

    **Differs from TF:** a place that is not there gives what it does in `gather`.
    """
    xp, (params, indices) = apart(params, indices)
    if not batch_dims:
        places = _places(xp, indices)
        check_places(places, params.shape)
        if xp is np:
            return params[places]
        return params.at[places].get(mode="fill", wrap_negative_indices=False)
    of_one = functools.partial(gather_nd, batch_dims=batch_dims - 1)
    return _of_each(xp, of_one, params, indices)


def _places(xp: Any, indices: Any) -> tuple[Any, ...]:
    return tuple(xp.moveaxis(indices, -1, 0))


@array_function
def scatter_nd(
    indices: Any, updates: Any, shape: Any, bad_indices_policy: str = "", name: str | None = None
) -> Any:
    """Zeros, with updates added at the places that the last axis of the indices names.

    **Differs from TF:** compiled code drops updates of places that are not there, as TensorFlow
    does on GPUs. Elsewhere they are an error.
    """
    if isinstance(updates, Unwritten):
        return np.zeros(static_shape(shape), updates.dtype)
    xp, (updates, indices) = apart(updates, indices)
    zeros = xp.zeros(static_shape(shape), updates.dtype)
    # The sum of truth values is "any of them".
    return _scattered(zeros, indices, updates, "max" if updates.dtype == bool else "add")


def _scattered(tensor: Any, indices: Any, updates: Any, how: str) -> Any:
    if isinstance(indices, Unwritten) and isinstance(updates, Unwritten):
        return _unwritten(tensor, indices.size, how)
    xp, (tensor, indices, updates) = apart(tensor, indices, updates)
    places = _places(xp, indices)
    check_places(places, tensor.shape)
    shape = (*indices.shape[:-1], *tensor.shape[len(places) :])
    if updates.ndim and updates.shape != shape:
        raise UsageError.of("updates", f"of shape {shape}", updates.shape)
    if updates.dtype.kind == "f" and tensor.dtype.kind in "iu":
        raise UsageError.of("updates", f"of type {tensor.dtype}", str(updates.dtype))
    updates = updates.astype(tensor.dtype)
    if how == "subtract":  # the passes over compiled steps know "scatter-add" only
        how, updates = "add", -updates
    if xp is jnp:
        return getattr(tensor.at[places], how)(updates, wrap_negative_indices=False)
    found = np.array(tensor)
    if how == "set":
        found[places] = updates
    else:
        _OF_NUMPY[how].at(found, places, updates)
    return found


def _unwritten(tensor: Any, size: int, how: str) -> Any:
    """A tensor after updates by zeros at index 0, if equal for any number of indexed axes."""
    _, tensor = array(tensor)
    results = [
        np.asarray(_scattered(tensor, np.zeros((size, axes), int), updates, how))
        for axes in range(1, tensor.ndim + 1)
        for updates in [np.zeros((size, *tensor.shape[axes:]), tensor.dtype)]
    ]
    if not all(np.array_equal(results[0], other) for other in results[1:]):
        raise UsageError(
            "Cannot scatter from a TensorArray without elements: their shape is not known. Pass "
            "`element_shape` to it."
        )
    return results[0]


_OF_NUMPY = {"add": np.add, "min": np.minimum, "max": np.maximum}


@array_function
def tensor_scatter_nd_update(
    tensor: Any, indices: Any, updates: Any, name: str | None = None
) -> Any:
    """The array with updates at the places that the last axis of the indices names."""
    return _scattered(tensor, indices, updates, "set")


def _scatter(name: str, how: str, what: str) -> Callable[..., Any]:
    def function(
        tensor: Any,
        indices: Any,
        updates: Any,
        bad_indices_policy: str = "",
        name: str | None = None,
    ) -> Any:
        return _scattered(tensor, indices, updates, how)

    text = f"The array with {what} at the places that the last axis of the indices names."
    return array_function(published(function, name, text))


tensor_scatter_nd_add = _scatter("tensor_scatter_nd_add", "add", "updates added")
tensor_scatter_nd_sub = _scatter("tensor_scatter_nd_sub", "subtract", "updates subtracted")
tensor_scatter_nd_max = _scatter("tensor_scatter_nd_max", "max", "the larger of element and update")
tensor_scatter_nd_min = _scatter(
    "tensor_scatter_nd_min", "min", "the smaller of element and update"
)


@array_function
def boolean_mask(
    tensor: Any, mask: Any, axis: Any = None, name: str | None = "boolean_mask"
) -> Any:
    """The elements where the mask is true; outside compiled code only."""
    xp, x = array(tensor)
    chosen = concrete(mask, "boolean_mask")
    axis = int(axis or 0)
    if chosen.shape != x.shape[axis : axis + chosen.ndim]:
        raise UsageError.of("mask", f"of a shape that {x.shape} has from axis {axis}", chosen.shape)
    rows = x.reshape(*x.shape[:axis], chosen.size, *x.shape[axis + chosen.ndim :])
    return xp.take(rows, np.flatnonzero(chosen), axis=axis)


@array_function
def dynamic_partition(
    data: Any, partitions: Any, num_partitions: Any, name: str | None = None
) -> list[Any]:
    """The elements of each number from 0 on, a list; outside compiled code only."""
    _, x = array(data)
    numbers, count = concrete(partitions, "dynamic_partition"), static_size(num_partitions)
    if numbers.shape != x.shape[: numbers.ndim]:
        raise UsageError.of("partitions", f"of the first axes of {x.shape}", numbers.shape)
    check_places([numbers], [count], "partitions")
    rows = x.reshape(numbers.size, *x.shape[numbers.ndim :])
    return [rows[np.flatnonzero(numbers == number)] for number in range(count)]


@array_function
def dynamic_stitch(indices: Any, data: Any, name: str | None = None) -> Any:
    """One array of several, whose elements stand at these places; of two at one, the last."""
    xp, parts = apart(*data)
    places = [concrete(one, "dynamic_stitch") for one in indices]
    pairs = [*zip(places, parts, strict=True)]
    if any(place.shape != part.shape[: place.ndim] for place, part in pairs):
        shapes = [place.shape for place in places]
        raise UsageError.of("indices", f"of the first axes of {[p.shape for p in parts]}", shapes)
    rows = xp.concatenate([p.reshape(i.size, *p.shape[i.ndim :]) for i, p in pairs])
    where = np.concatenate([place.reshape(-1) for place in places])
    source = np.full(int(where.max(initial=-1)) + 1, -1)
    check_places([where], source.shape)
    source[where] = np.arange(where.size)
    return xp.concatenate([rows, xp.zeros_like(rows[:1])])[source]  # zeros where nothing stands


@array_function
def where(condition: Any, x: Any = None, y: Any = None, name: str | None = None) -> Any:
    """Elements of x where the condition is true, else of y; without both, the places where it is.

    The places are known outside compiled code only.

    Raises:
        UsageError: If only one of x and y is given.
    """
    if (x is None) != (y is None):
        raise UsageError("`tf.where` got only one of `x` and `y`. Pass both or neither.")
    if x is None:
        xp = array(condition)[0]
        places = np.argwhere(concrete(condition, "where"))
        return places if xp is np else jnp.asarray(places)
    xp, (x, y, condition) = arrays(x, y, mask=condition)
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
    pairs = [*zip(starts, sizes, strict=True)]
    ends = [old if n == -1 else a + n for (a, n), old in zip(pairs, x.shape, strict=False)]
    found = zip(starts, ends, x.shape, strict=False)
    inside = all(
        0 <= a <= b <= old for a, b, old in found if {type(a), type(b), type(old)} == {int}
    )
    if len(pairs) != x.ndim or not inside:
        raise UsageError(
            f"A slice from {list(starts)} of size {list(sizes)} is not inside an array of shape "
            f"{tuple(x.shape)}. Both need a number for each axis."
        )
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


@array_function
def sort(values: Any, axis: Any = -1, direction: str = "ASCENDING", name: str | None = None) -> Any:
    """The elements in order along an axis."""
    xp, x = array(values)
    found = xp.sort(x, axis=int(axis))
    return xp.flip(found, int(axis)) if _is_descending(direction) else found


@array_function
def argsort(
    values: Any,
    axis: Any = -1,
    direction: str = "ASCENDING",
    stable: bool = False,
    name: str | None = None,
) -> Any:
    """The places of the elements in order along an axis; equal ones stay in their order."""
    xp, x = array(values)
    axis = int(axis)
    if not _is_descending(direction):
        return xp.argsort(x, axis=axis, stable=True).astype(np.int32)
    # Backwards twice, so that equal elements stay in their order.
    backwards = xp.argsort(xp.flip(x, axis), axis=axis, stable=True)
    return (x.shape[axis] - 1 - xp.flip(backwards, axis)).astype(np.int32)


def _is_descending(direction: str) -> bool:
    if direction not in ("ASCENDING", "DESCENDING"):
        raise UsageError.of("direction", '"ASCENDING" or "DESCENDING"', direction)
    return direction == "DESCENDING"


@array_function
def invert_permutation(x: Any, name: str | None = None) -> Any:
    """Where each number from 0 on stands in a permutation."""
    xp, x = array(x)
    numbers = host_value(x)
    if numbers is not None and not np.array_equal(np.sort(numbers), np.arange(len(numbers))):
        must_be = f"a permutation of the numbers below {len(numbers)}"
        raise UsageError.of("x", must_be, numbers.tolist())
    return xp.argsort(x).astype(x.dtype)


@array_function
def searchsorted(
    sorted_sequence: Any,
    values: Any,
    side: str = "left",
    out_type: Any = int32,
    name: str | None = None,
) -> Any:
    """Where each value would stand in its sorted row."""
    xp, (rows, values) = arrays(sorted_sequence, values)
    if rows.ndim == 1:
        return xp.searchsorted(rows, values, side=side).astype(numpy_dtype(out_type, xp))
    flat = (x.reshape(-1, x.shape[-1]) for x in (rows, values))
    found = [xp.searchsorted(row, sought, side=side) for row, sought in zip(*flat, strict=True)]
    return xp.stack(found).reshape(values.shape).astype(numpy_dtype(out_type, xp))


class Unique(NamedTuple):
    """The different elements, and which of them each element is."""

    y: Any
    idx: Any


class UniqueWithCounts(NamedTuple):
    """The different elements, which of them each element is, and how many are the same."""

    y: Any
    idx: Any
    count: Any


@array_function
def unique(x: Any, out_idx: Any = int32, name: str | None = None) -> Unique:
    """The different elements in the order of their first place; outside compiled code."""
    return Unique(*unique_with_counts(x, out_idx)[:2])


@array_function
def unique_with_counts(x: Any, out_idx: Any = int32, name: str | None = None) -> UniqueWithCounts:
    """The different elements in the order of their first place, and how many there are of each."""
    values = concrete(x, "unique")
    _, firsts, where_, counts = np.unique(
        values, return_index=True, return_inverse=True, return_counts=True
    )
    order = np.argsort(firsts)
    index = np.argsort(order)[where_.reshape(-1)]
    kind = numpy_dtype(out_idx)
    found = UniqueWithCounts(values[firsts[order]], index.astype(kind), counts[order].astype(kind))
    return found if array(x)[0] is np else UniqueWithCounts(*map(jnp.asarray, found))
