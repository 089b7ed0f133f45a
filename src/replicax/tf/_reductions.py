"""What makes one number of many: sums, means, extremes, norms, and sums along an axis.

`__all__` names those of `tf` itself; `tf.math` has the others, too.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax.tf._calls import array, array_function, axes_of, numpy_dtype
from replicax.tf._dtypes import as_dtype, int64

__all__ = [
    "argmax", "argmin", "cumsum", "reduce_all", "reduce_any", "reduce_logsumexp", "reduce_max",
    "reduce_mean", "reduce_min", "reduce_prod", "reduce_sum",
]  # fmt: skip


@array_function
def reduce_sum(
    input_tensor: Any, axis: Any = None, keepdims: bool = False, name: str | None = None
) -> Any:
    """The sum over axes, in the type of the elements."""
    xp, x = array(input_tensor)
    return xp.sum(x, axis=axes_of(axis), keepdims=bool(keepdims), dtype=_kept(x))


@array_function
def reduce_prod(
    input_tensor: Any, axis: Any = None, keepdims: bool = False, name: str | None = None
) -> Any:
    """The product over axes, in the type of the elements."""
    xp, x = array(input_tensor)
    return xp.prod(x, axis=axes_of(axis), keepdims=bool(keepdims), dtype=_kept(x))


def _kept(x: Any) -> Any:
    return np.dtype(np.int32) if x.dtype == bool else x.dtype


@array_function
def reduce_mean(
    input_tensor: Any, axis: Any = None, keepdims: bool = False, name: str | None = None
) -> Any:
    """The mean over axes. Of integers it is an integer, rounded towards zero, as in TensorFlow."""
    xp, x = array(input_tensor)
    axes, keep = axes_of(axis), bool(keepdims)
    if x.dtype.kind not in "iu":
        return xp.mean(x, axis=axes, keepdims=keep)
    total = xp.sum(x, axis=axes, keepdims=keep, dtype=x.dtype)
    reduced = range(x.ndim) if axes is None else np.atleast_1d(axes)
    count = math.prod(x.shape[axis] for axis in reduced)
    count = count if isinstance(count, int) else jnp.asarray(count, x.dtype)  # of a saved program
    return (xp.sign(total) * (xp.abs(total) // count)).astype(x.dtype)


@array_function
def reduce_max(
    input_tensor: Any, axis: Any = None, keepdims: bool = False, name: str | None = None
) -> Any:
    """The largest element over axes; of none, the smallest number of the type."""
    xp, x = array(input_tensor)
    least = None if x.size else as_dtype(x.dtype).min
    return xp.max(x, axis=axes_of(axis), keepdims=bool(keepdims), **_of_none(least))


@array_function
def reduce_min(
    input_tensor: Any, axis: Any = None, keepdims: bool = False, name: str | None = None
) -> Any:
    """The smallest element over axes; of none, the largest number of the type."""
    xp, x = array(input_tensor)
    most = None if x.size else as_dtype(x.dtype).max
    return xp.min(x, axis=axes_of(axis), keepdims=bool(keepdims), **_of_none(most))


def _of_none(value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    infinite = isinstance(value, float | np.floating)
    return {"initial": np.copysign(np.inf, value) if infinite else value}


@array_function
def reduce_all(
    input_tensor: Any, axis: Any = None, keepdims: bool = False, name: str | None = None
) -> Any:
    """Whether all are true, over axes."""
    xp, x = array(input_tensor)
    return xp.all(x, axis=axes_of(axis), keepdims=bool(keepdims))


@array_function
def reduce_any(
    input_tensor: Any, axis: Any = None, keepdims: bool = False, name: str | None = None
) -> Any:
    """Whether one is true, over axes."""
    xp, x = array(input_tensor)
    return xp.any(x, axis=axes_of(axis), keepdims=bool(keepdims))


@array_function
def reduce_logsumexp(
    input_tensor: Any, axis: Any = None, keepdims: bool = False, name: str | None = None
) -> Any:
    """The logarithm of the sum of the exponentials over axes, without overflow."""
    xp, x = array(input_tensor)
    axes, keep = axes_of(axis), bool(keepdims)
    if xp is jnp:
        return jax.nn.logsumexp(x, axis=axes, keepdims=keep)
    largest = np.max(x, axis=axes, keepdims=True, initial=-np.inf)
    largest = np.where(np.isfinite(largest), largest, 0).astype(x.dtype)
    found = np.log(np.sum(np.exp(x - largest), axis=axes, keepdims=True)) + largest
    return found if keep else np.squeeze(found, axes)


@array_function
def reduce_variance(
    input_tensor: Any, axis: Any = None, keepdims: bool = False, name: str | None = None
) -> Any:
    """The variance over axes, divided by the number of elements."""
    xp, x = array(input_tensor)
    return xp.var(x, axis=axes_of(axis), keepdims=bool(keepdims))


@array_function
def reduce_std(
    input_tensor: Any, axis: Any = None, keepdims: bool = False, name: str | None = None
) -> Any:
    """The root of the variance over axes."""
    xp, x = array(input_tensor)
    return xp.std(x, axis=axes_of(axis), keepdims=bool(keepdims))


@array_function
def reduce_euclidean_norm(
    input_tensor: Any, axis: Any = None, keepdims: bool = False, name: str | None = None
) -> Any:
    """The root of the sum of squares over axes."""
    xp, x = array(input_tensor)
    return xp.sqrt(xp.sum(x * x, axis=axes_of(axis), keepdims=bool(keepdims))).astype(x.dtype)


@array_function
def count_nonzero(
    input: Any,
    axis: Any = None,
    keepdims: bool | None = None,
    dtype: Any = int64,
    name: str | None = None,
) -> Any:
    """How many elements are not 0, over axes."""
    xp, x = array(input)
    found = xp.sum(x != 0, axis=axes_of(axis), keepdims=bool(keepdims))
    return found.astype(numpy_dtype(dtype, xp))


@array_function
def argmax(input: Any, axis: Any = None, output_type: Any = int64, name: str | None = None) -> Any:
    """The place of the largest element along an axis, the first axis by default.

    **Differs from TF:** on JAX int64 is int32 unless `jax_enable_x64` is set.
    """
    xp, x = array(input)
    return xp.argmax(x, axis=axes_of(axis) or 0).astype(numpy_dtype(output_type, xp))


@array_function
def argmin(input: Any, axis: Any = None, output_type: Any = int64, name: str | None = None) -> Any:
    """The place of the smallest element along an axis, the first axis by default.

    **Differs from TF:** on JAX int64 is int32 unless `jax_enable_x64` is set.
    """
    xp, x = array(input)
    return xp.argmin(x, axis=axes_of(axis) or 0).astype(numpy_dtype(output_type, xp))


@array_function
def cumsum(
    x: Any, axis: Any = 0, exclusive: bool = False, reverse: bool = False, name: str | None = None
) -> Any:
    """The sums of the elements up to each, along an axis.

    Args:
        x: The array.
        axis: The axis.
        exclusive: Whether an element is left out of its own sum.
        reverse: Whether to add up from the end.
        name: Of no consequence.
    """
    xp, x = array(x)
    return _along(xp, xp.cumsum, x, int(axis), exclusive, reverse, 0)


@array_function
def cumprod(
    x: Any, axis: Any = 0, exclusive: bool = False, reverse: bool = False, name: str | None = None
) -> Any:
    """The products of the elements up to each, along an axis; the arguments are `cumsum`'s."""
    xp, x = array(x)
    return _along(xp, xp.cumprod, x, int(axis), exclusive, reverse, 1)


def _along(
    xp: Any, compute: Any, x: Any, axis: int, exclusive: bool, reverse: bool, start: Any
) -> Any:
    x = xp.flip(x, axis) if reverse else x
    if exclusive:
        before = (slice(None),) * (axis % x.ndim)
        x = xp.concatenate([xp.full_like(x[*before, :1], start), x[*before, :-1]], axis)
    found = compute(x, axis=axis, dtype=x.dtype)
    return xp.flip(found, axis) if reverse else found


@array_function
def cumulative_logsumexp(
    x: Any, axis: Any = 0, exclusive: bool = False, reverse: bool = False, name: str | None = None
) -> Any:
    """The logarithms of the sums of exponentials up to each element; as `cumsum`."""
    _, x = array(x)
    x, axis = jnp.asarray(x), int(axis)

    def compute(values: Any, axis: int, dtype: Any) -> Any:
        return jax.lax.cumlogsumexp(values, axis % values.ndim)

    # In TensorFlow, the sum of nothing is the smallest number, not -inf.
    least: Any = jnp.finfo(x.dtype).min
    return _along(jnp, compute, x, axis, exclusive, reverse, least)


@array_function
def zero_fraction(value: Any, name: str | None = None) -> Any:
    """The share of the elements that are 0."""
    xp, x = array(value)
    return xp.mean(x == 0, dtype=np.float32)
