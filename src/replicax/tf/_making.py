"""Arrays made from nothing but numbers: zeros, ones, identities, grids, masks.

They are JAX's, in functions of a pipeline NumPy's.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from replicax.tf._calls import (
    array,
    array_function,
    arrays,
    concrete,
    numpy_dtype,
    numpy_or_jax,
    static_shape,
    static_size,
)
from replicax.tf._dtypes import bool as bool_
from replicax.tf._dtypes import float32

__all__ = [
    "eye", "fill", "linspace", "meshgrid", "one_hot", "ones", "ones_like", "sequence_mask",
    "zeros", "zeros_like",
]  # fmt: skip


@array_function
def zeros(shape: Any, dtype: Any = float32, name: str | None = None) -> Any:
    """An array of zeros."""
    xp = numpy_or_jax()
    return xp.zeros(static_shape(shape), numpy_dtype(dtype, xp))


@array_function
def ones(shape: Any, dtype: Any = float32, name: str | None = None) -> Any:
    """An array of ones."""
    xp = numpy_or_jax()
    return xp.ones(static_shape(shape), numpy_dtype(dtype, xp))


@array_function
def fill(dims: Any, value: Any, name: str | None = None) -> Any:
    """An array of one number, in its type."""
    _, value = array(value)
    xp = numpy_or_jax(*([value] if isinstance(value, jax.Array) else []))
    return xp.full(static_shape(dims), value, value.dtype)


@array_function
def zeros_like(input: Any, dtype: Any = None, name: str | None = None) -> Any:
    """Zeros in the shape of an array, and in its type if no other is given."""
    xp, x = array(input)
    return xp.zeros_like(x, dtype=x.dtype if dtype is None else numpy_dtype(dtype, xp))


@array_function
def ones_like(input: Any, dtype: Any = None, name: str | None = None) -> Any:
    """Ones in the shape of an array, and in its type if no other is given."""
    xp, x = array(input)
    return xp.ones_like(x, dtype=x.dtype if dtype is None else numpy_dtype(dtype, xp))


@array_function
def eye(
    num_rows: Any,
    num_columns: Any = None,
    batch_shape: Any = None,
    dtype: Any = float32,
    name: str | None = None,
) -> Any:
    """Ones on the diagonal, zeros elsewhere; `batch_shape` of such matrices."""
    xp = numpy_or_jax()
    columns = None if num_columns is None else static_size(num_columns)
    one = xp.eye(static_size(num_rows), columns, dtype=numpy_dtype(dtype, xp))
    return (
        one
        if batch_shape is None
        else xp.broadcast_to(one, (*static_shape(batch_shape), *one.shape))
    )


@array_function
def linspace(start: Any, stop: Any, num: Any, name: str | None = None, axis: int = 0) -> Any:
    """Numbers at equal distances, both ends among them."""
    xp, (start, stop) = arrays(start, stop)
    found = xp.linspace(start, stop, static_size(num), axis=axis)
    return found.astype(xp.result_type(start, stop)) if xp is np else found


@array_function
def meshgrid(*args: Any, indexing: str = "xy", name: str | None = None) -> Any:
    """The coordinates of a grid, one array for each axis."""
    xp, found = arrays(*args)
    return list(xp.meshgrid(*found, indexing=indexing))


@array_function
def one_hot(
    indices: Any,
    depth: Any,
    on_value: Any = None,
    off_value: Any = None,
    axis: Any = None,
    dtype: Any = None,
    name: str | None = None,
) -> Any:
    """A one at the place that each index names, zeros elsewhere; of no place, zeros.

    Args:
        indices: Integers of any shape.
        depth: How many places there are.
        on_value: Instead of 1.
        off_value: Instead of 0.
        axis: Where the new axis stands, at the end by default.
        dtype: The type of the result: by default that of the values, else float32.
        name: Of no consequence.
    """
    xp, indices = array(indices)
    if dtype is None:
        values = [value for value in (on_value, off_value) if value is not None]
        kind = array(values[0])[1].dtype if values else np.float32
    else:
        kind = numpy_dtype(dtype, xp)
    places = xp.arange(static_size(depth))
    axis = indices.ndim if axis in (None, -1) else axis
    places = places.reshape((-1,) + (1,) * (indices.ndim - axis))
    chosen = xp.expand_dims(indices, axis) == places
    if on_value is None and off_value is None:
        return chosen.astype(kind)
    on, off = (1 if on_value is None else on_value), (0 if off_value is None else off_value)
    return xp.where(chosen, on, off).astype(kind)


@array_function
def sequence_mask(
    lengths: Any, maxlen: Any = None, dtype: Any = bool_, name: str | None = None
) -> Any:
    """For each length that many ones, then zeros.

    Args:
        lengths: Integers of any shape.
        maxlen: The size of the new axis, by default the largest length; inside compiled code it
            must be given.
        dtype: The type of the result.
        name: Of no consequence.
    """
    if maxlen is None:
        maxlen = int(concrete(lengths, "sequence_mask").max(initial=0))
    xp, lengths = array(lengths)
    within = xp.arange(static_size(maxlen)) < lengths[..., None]
    return within.astype(numpy_dtype(dtype, xp))
