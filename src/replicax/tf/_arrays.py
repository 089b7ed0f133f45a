"""How arrays are made, put together and shaped: `zeros`, `one_hot`, `concat`, `pad`, `reshape`, …

Arrays made from nothing but numbers are JAX's, in functions of a pipeline NumPy's. What picks
elements out is in `_indexing.py`.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from replicax._core.errors import UsageError
from replicax._core.lookup import check_places
from replicax.data._host import HostTensor
from replicax.tf._calls import (
    apart,
    array,
    array_function,
    arrays,
    axes_of,
    concrete,
    is_symbolic,
    new_axis,
    numpy_dtype,
    numpy_or_jax,
    registered,
    static_shape,
    static_size,
)
from replicax.tf._dtypes import bool as bool_
from replicax.tf._dtypes import float32, int32


@registered
def shape(input: Any, out_type: Any = None, name: str | None = None) -> Any:
    """The shape of an array, known also while code is compiled.

    So it can be indexed, computed with, and passed on as a shape.

    **Differs from TF:** it is a NumPy array. Of an input of a Keras model that is being built it
    is an operation of the model, as far as sizes are not known.

    Example:
        >>> import replicax.tf as tf
        >>> x = tf.zeros([2, 3])
        >>> tf.reshape(x, [tf.shape(x)[0] * 3, -1]).shape
        (6, 1)
    """
    if is_symbolic(input):
        from replicax.tf._symbolic import shape_of

        return shape_of(input)
    sizes = input.shape if hasattr(input, "shape") else array(input)[1].shape
    # Keras traces models with sizes that are not numbers yet.
    known = all(isinstance(size, int) for size in sizes)
    return HostTensor.of(np.array(sizes, numpy_dtype(out_type or int32))) if known else tuple(sizes)


def shape_n(input: Any, out_type: Any = int32, name: str | None = None) -> list[Any]:
    """The shapes of several arrays."""
    return [shape(one, out_type) for one in input]


def size(input: Any, out_type: Any = None, name: str | None = None) -> Any:
    """How many elements an array has, known also while code is compiled."""
    sizes = shape(getattr(input, "flat_values", input))  # of a ragged tensor
    if is_symbolic(sizes):
        return math.prod(sizes)
    if not isinstance(sizes, HostTensor):  # of a saved program, any
        return jnp.asarray(math.prod(sizes), numpy_dtype(out_type or int32, jnp))
    found = np.prod(sizes, dtype=np.int64)
    return HostTensor.of(found.astype(numpy_dtype(out_type or int32)))


def rank(input: Any, name: str | None = None) -> Any:
    """How many axes an array has."""
    return HostTensor.of(np.int32(len(shape(input))))


@array_function
def reshape(tensor: Any, shape: Any, name: str | None = None) -> Any:
    """The elements in another shape; -1 for the size that follows from the others."""
    _, x = array(tensor)
    wanted = static_shape(shape)
    # None is a size that a Keras model did not know when it was built.
    return x.reshape([x.shape[i] if wish is None else wish for i, wish in enumerate(wanted)])


@array_function
def expand_dims(input: Any, axis: Any, name: str | None = None) -> Any:
    """A new axis of size 1."""
    xp, x = array(input)
    return xp.expand_dims(x, new_axis(axis, x.ndim))


@array_function
def squeeze(input: Any, axis: Any = None, name: str | None = None) -> Any:
    """The array without axes of size 1, or without the named ones of them."""
    xp, x = array(input)
    axes = axes_of(axis)
    return xp.squeeze(x, axis=None if axes == () else axes)


@array_function
def transpose(
    a: Any, perm: Any = None, conjugate: bool = False, name: str | None = "transpose"
) -> Any:
    """The axes in another order, backwards by default."""
    xp, x = array(a)
    x = xp.transpose(x, None if perm is None else axes_of(perm))
    return xp.conj(x) if conjugate else x


@array_function
def concat(values: Any, axis: Any, name: str | None = "concat") -> Any:
    """Arrays one behind the other, along an axis that they have."""
    if not isinstance(values, list | tuple):
        return array(values)[1]
    xp, found = arrays(*values)
    return xp.concatenate(found, axis=int(axis))


@array_function
def stack(values: Any, axis: Any = 0, name: str | None = "stack") -> Any:
    """Arrays of one shape along a new axis."""
    xp, found = arrays(*values)
    return xp.stack(found, axis=int(axis))


@array_function
def unstack(
    value: Any, num: int | None = None, axis: int = 0, name: str | None = "unstack"
) -> list[Any]:
    """The arrays that stand along an axis, as a list.

    Raises:
        UsageError: If there are not `num` of them.
    """
    xp, x = array(value)
    if num is not None and num != x.shape[axis]:
        raise UsageError.of(
            "num", f"{x.shape[axis]}, the size of axis {axis}", num, "Leave it out."
        )
    return [xp.take(x, place, axis=axis) for place in range(x.shape[axis])]


@array_function
def split(
    value: Any,
    num_or_size_splits: Any,
    axis: Any = 0,
    num: int | None = None,
    name: str | None = "split",
) -> list[Any]:
    """An array in parts along an axis.

    Raises:
        UsageError: If the parts do not make up the axis.
    """
    xp, x = array(value)
    length, axis = x.shape[int(axis)], int(axis)
    if not isinstance(num_or_size_splits, list | tuple) and not np.ndim(num_or_size_splits):
        parts = static_size(num_or_size_splits)
        sizes = [length // parts] * parts
    else:
        sizes = list(static_shape(num_or_size_splits))
        if -1 in sizes:
            sizes[sizes.index(-1)] = length - sum(part for part in sizes if part != -1)
    if sum(sizes) != length or min(sizes, default=0) < 0:
        raise UsageError(
            f"Cannot split an axis of size {length} into {num_or_size_splits}. Pass a divisor of "
            f"{length}, or sizes that add up to it."
        )
    return xp.split(x, np.cumsum(sizes)[:-1].tolist(), axis=axis)


@array_function
def tile(input: Any, multiples: Any, name: str | None = None) -> Any:
    """An array repeated as often along each axis."""
    xp, x = array(input)
    counts = static_shape(multiples)
    if len(counts) != x.ndim or any(isinstance(n, int) and n < 0 for n in counts):
        raise UsageError.of("multiples", f"{x.ndim} integers of at least 0", list(counts))
    return xp.tile(x, counts)


@array_function
def repeat(input: Any, repeats: Any, axis: Any = None, name: str | None = None) -> Any:
    """Each element, or each row along an axis, several times in succession."""
    xp, x = array(input)
    counts = static_shape(repeats) if np.ndim(repeats) else static_size(repeats)
    return xp.repeat(x, np.asarray(counts), axis=axes_of(axis))


@array_function
def pad(
    tensor: Any,
    paddings: Any,
    mode: str = "CONSTANT",
    constant_values: Any = 0,
    name: str | None = None,
) -> Any:
    """More elements before and after, on each axis.

    Raises:
        UsageError: If there is no such mode.
    """
    xp, x = array(tensor)
    widths = [static_shape(pair) for pair in paddings]
    if mode.upper() == "CONSTANT":
        return xp.pad(x, widths, mode="constant", constant_values=constant_values)
    if mode.upper() not in ("REFLECT", "SYMMETRIC"):
        raise UsageError.of("mode", '"CONSTANT", "REFLECT" or "SYMMETRIC"', mode)
    short = 1 if mode.upper() == "REFLECT" else 0
    known = [
        (max(pair), old) for pair, old in zip(widths, x.shape, strict=False) if type(old) is int
    ]
    if any(width > old - short for width, old in known):
        raise UsageError(
            f"Cannot pad shape {tuple(x.shape)} by {widths} with mode={mode!r}: a mirror image has "
            "no more elements than the array. Pad several times."
        )
    return xp.pad(x, widths, mode=mode.lower())


@array_function
def reverse(tensor: Any, axis: Any, name: str | None = None) -> Any:
    """The elements backwards along axes."""
    xp, x = array(tensor)
    return xp.flip(x, axes_of(axis))


@array_function
def reverse_sequence(
    input: Any, seq_lengths: Any, seq_axis: Any = None, batch_axis: Any = None, name: Any = None
) -> Any:
    """The first elements of each row backwards, as many as its length says."""
    if seq_axis is None:
        raise UsageError.of("seq_axis", "the axis that is reversed", seq_axis)
    xp, (x, lengths) = apart(input, seq_lengths)
    axes = (int(batch_axis or 0), int(seq_axis))
    rows, size = x.shape[axes[0]], x.shape[axes[1]]
    if lengths.shape != (rows,):
        raise UsageError.of("seq_lengths", f"of shape {(rows,)}", tuple(lengths.shape))
    check_places([lengths], [size + 1], "seq_lengths")
    places, lengths = xp.arange(size), lengths[:, None]
    places = xp.where(places < lengths, lengths - 1 - places, places)
    found = xp.moveaxis(x, axes, (0, 1))[xp.arange(rows)[:, None], places]
    return xp.moveaxis(found, (0, 1), axes)


@array_function
def roll(input: Any, shift: Any, axis: Any, name: str | None = None) -> Any:
    """The elements moved along axes, those from the end to the start."""
    xp, x = array(input)
    given = (shift, axis)  # lists may hold numbers that compiled code computes
    if len({(len(one),) if isinstance(one, list | tuple) else np.shape(one) for one in given}) > 1:
        raise UsageError(f"`shift` and `axis` must have one length, got {shift} and {axis}.")
    if isinstance(shift, list | tuple | Tracer):
        xp, (x, shift) = apart(x, shift)
        return xp.roll(x, shift, axes_of(axis))
    return xp.roll(x, axes_of(shift), axes_of(axis))


@array_function
def broadcast_to(input: Any, shape: Any, name: str | None = None) -> Any:
    """The array repeated to a larger shape."""
    xp, x = array(input)
    return xp.broadcast_to(x, static_shape(shape))


def broadcast_static_shape(shape_x: Any, shape_y: Any) -> Any:
    """The shape of what is computed of two arrays of these shapes."""
    from replicax.data._host import TensorShape

    return TensorShape(_broadcast(shape_x, shape_y))


def broadcast_dynamic_shape(shape_x: Any, shape_y: Any) -> Any:
    """The shape of what is computed of two arrays of these shapes, as `tf.shape` gives it."""
    return HostTensor.of(np.array(_broadcast(shape_x, shape_y), np.int32))


def _broadcast(*given: Any) -> tuple[int, ...]:
    one, other = map(static_shape, given)
    try:
        return jnp.broadcast_shapes(one, other)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"The shapes {one} and {other} do not broadcast to one shape. From the last axis on, "
            "make the sizes of each axis equal, or one of them 1."
        ) from error


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
    """An array of one number or text, in its type."""
    _, value = array(value)
    if value.size != 1:
        raise UsageError.of("value", "one number or text", f"shape {value.shape}")
    value = value.reshape(())
    counts = isinstance(value, jax.Array) or value.dtype == object
    xp = numpy_or_jax(*([value] if counts else []))
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
    batch = () if batch_shape is None else static_shape(batch_shape)
    return xp.broadcast_to(one, (*batch, *one.shape)) if batch else one


@array_function
def linspace(start: Any, stop: Any, num: Any, name: str | None = None, axis: int = 0) -> Any:
    """Numbers at equal distances, both ends among them."""
    xp, (start, stop) = arrays(start, stop)
    found = xp.linspace(start, stop, static_size(num), axis=axis)
    if xp is not np:
        return found
    kind = np.result_type(start, stop)
    return found.astype(np.float32 if kind.kind in "biu" else kind)  # as JAX


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
    """A one at the place that each index names, zeros elsewhere; of no place, zeros."""
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
    """For each length that many ones, then zeros; in compiled code `maxlen` must be given."""
    if maxlen is None:
        maxlen = int(concrete(lengths, "sequence_mask").max(initial=0))
    xp, lengths = array(lengths)
    within = xp.arange(static_size(maxlen)) < lengths[..., None]
    return within.astype(numpy_dtype(dtype, xp))
