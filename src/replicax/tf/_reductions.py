"""What makes one number of many: over axes, along an axis, of segments; counts of integers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.lib.array_utils import normalize_axis_tuple

from replicax._core.errors import UsageError
from replicax._core.lookup import check_places
from replicax.tf._calls import (
    array,
    array_function,
    arrays,
    axes_of,
    concrete,
    numpy_dtype,
    published,
    static_size,
)
from replicax.tf._dtypes import as_dtype, int32, int64


def _over_axes(compute: Callable[..., Any]) -> Callable[..., Any]:
    """The array function, with TensorFlow's arguments, that reduces an array over axes."""

    def function(
        input_tensor: Any, axis: Any = None, keepdims: bool = False, name: str | None = None
    ) -> Any:
        xp, x = array(input_tensor)
        return compute(xp, x, axis=axes_of(axis), keepdims=bool(keepdims))

    return array_function(published(function, compute.__name__, compute.__doc__ or ""))


@_over_axes
def reduce_sum(xp: Any, x: Any, **over: Any) -> Any:
    """The sum over axes, in the type of the elements."""
    return xp.sum(x, dtype=_kept(x), **over)


@_over_axes
def reduce_prod(xp: Any, x: Any, **over: Any) -> Any:
    """The product over axes, in the type of the elements."""
    return xp.prod(x, dtype=_kept(x), **over)


def _kept(x: Any) -> Any:
    return np.dtype(np.int32) if x.dtype == bool else x.dtype


@_over_axes
def reduce_mean(xp: Any, x: Any, axis: Any, keepdims: bool) -> Any:
    """The mean over axes. Of integers it is an integer, rounded towards zero, as in TensorFlow."""
    if x.dtype.kind not in "iu":
        return xp.mean(x, axis=axis, keepdims=keepdims)
    axes = normalize_axis_tuple(range(x.ndim) if axis is None else axis, x.ndim)
    count = math.prod(x.shape[axis] for axis in axes)
    if xp is np:
        total = np.sum(x, axis=axes, dtype=f"{x.dtype.kind}8", keepdims=keepdims)
        return (np.sign(total) * (np.abs(total) // count)).astype(x.dtype)
    # A sum may not fit into 32 bits; that of quotients does, and remainders carry into it.
    wide = x.astype(np.int32) if x.dtype.itemsize < 4 else x
    counts = jnp.full(x.shape, count, wide.dtype)  # an operand: of a saved program, no number
    parts = (*jnp.divmod(wide, counts), counts)
    found, left, _ = jax.lax.reduce(parts, (wide.dtype.type(0),) * 3, _with_carry, axes)
    found = (found + ((found < 0) & (left != 0))).astype(x.dtype)
    return jnp.expand_dims(found, axes) if keepdims else found


def _with_carry(first: Any, second: Any) -> Any:
    """The sum of two numbers of quotient, remainder and divisor; of nothing, the divisor is 0."""
    (whole, left, count), (more, rest, other) = first, second
    count = jnp.maximum(count, other)
    carries = (left != 0) & (left >= count - rest)
    return whole + more + carries, jnp.where(carries, left - (count - rest), left + rest), count


@_over_axes
def reduce_max(xp: Any, x: Any, **over: Any) -> Any:
    """The largest element over axes; of none, the smallest number of the type."""
    return xp.max(x, **over, **_of_none(x, "min"))


@_over_axes
def reduce_min(xp: Any, x: Any, **over: Any) -> Any:
    """The smallest element over axes; of none, the largest number of the type."""
    return xp.min(x, **over, **_of_none(x, "max"))


def _of_none(x: Any, limit: str) -> dict[str, Any]:
    if x.size:
        return {}
    value = getattr(as_dtype(x.dtype), limit)
    infinite = isinstance(value, float | np.floating)
    return {"initial": np.copysign(np.inf, value) if infinite else value}


def _by_its_name(name: str, numpys: str, text: str) -> Callable[..., Any]:
    def compute(xp: Any, x: Any, **over: Any) -> Any:
        return getattr(xp, numpys)(x, **over)

    return _over_axes(published(compute, name, text))


reduce_all = _by_its_name("reduce_all", "all", "Whether all are true, over axes.")
reduce_any = _by_its_name("reduce_any", "any", "Whether one is true, over axes.")
reduce_std = _by_its_name("reduce_std", "std", "The root of the variance over axes.")
reduce_variance = _by_its_name(
    "reduce_variance", "var", "The variance over axes, divided by the number of elements."
)


@_over_axes
def reduce_logsumexp(xp: Any, x: Any, axis: Any, keepdims: bool) -> Any:
    """The logarithm of the sum of the exponentials over axes, without overflow."""
    if xp is jnp:
        return jax.nn.logsumexp(x, axis=axis, keepdims=keepdims)
    largest = np.max(x, axis=axis, keepdims=True, initial=-np.inf)
    largest = np.where(np.isfinite(largest), largest, 0).astype(x.dtype)
    found = np.log(np.sum(np.exp(x - largest), axis=axis, keepdims=True)) + largest
    return found if keepdims else np.squeeze(found, axis)


@_over_axes
def reduce_euclidean_norm(xp: Any, x: Any, **over: Any) -> Any:
    """The root of the sum of squares over axes."""
    return xp.sqrt(xp.sum(xp.real(x * xp.conj(x)), **over)).astype(x.dtype)


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
    found = xp.sum(x.astype(bool), axis=axes_of(axis), keepdims=bool(keepdims))
    return found.astype(numpy_dtype(dtype, xp))


def _place_of(name: str, what: str) -> Callable[..., Any]:
    def function(
        input: Any, axis: Any = None, output_type: Any = int64, name: str | None = None
    ) -> Any:
        xp, x = array(input)
        if jnp.issubdtype(x.dtype, jnp.floating):
            x = xp.where(xp.isnan(x), -np.inf if own == "argmax" else np.inf, x)
        return getattr(xp, own)(x, axis=axes_of(axis) or 0).astype(numpy_dtype(output_type, xp))

    own = name
    text = f"""The place of the {what} element along an axis, the first by default; NaN is none.

    **Differs from TF:** on JAX int64 is int32 unless `jax_enable_x64` is set.
    """
    return array_function(published(function, name, text))


argmax, argmin = _place_of("argmax", "largest"), _place_of("argmin", "smallest")


@array_function
def cumsum(
    x: Any, axis: Any = 0, exclusive: bool = False, reverse: bool = False, name: str | None = None
) -> Any:
    """The sums of the elements up to each, along an axis."""
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


Reduce = Callable[[Any, Any, int], Any]


def _sorted(kind: str, reduce: Reduce) -> Callable[..., Any]:
    """`segment_…`: a function of the rows with the same id, which stand together."""

    def function(data: Any, segment_ids: Any, name: str | None = None) -> Any:
        ids, data = concrete(segment_ids, function.__name__), jnp.asarray(data)
        if ids.shape != data.shape[:1] or np.any(np.diff(ids, prepend=0) < 0):
            raise UsageError.of(
                "segment_ids",
                f"{len(data)} numbers from 0 on, in order",
                ids[:20].tolist(),
                f"Use `tf.math.unsorted_{function.__name__}`.",
            )
        return reduce(data, ids, int(ids[-1]) + 1 if ids.size else 0)

    text = f"For each segment id, the {kind} of the rows that have it."
    return array_function(published(function, f"segment_{kind}", text))


def _unsorted(kind: str, reduce: Reduce) -> Callable[..., Any]:
    """`unsorted_segment_…`: a function of the rows with the same id, wherever they stand."""

    def function(data: Any, segment_ids: Any, num_segments: Any, name: str | None = None) -> Any:
        ids = jnp.asarray(segment_ids)
        data, number = jnp.asarray(data), static_size(num_segments)
        check_places([ids], [number], "segment_ids", least=None)  # negative ones are dropped
        rows = data.reshape(ids.size, *data.shape[ids.ndim :])
        return reduce(rows, ids.ravel(), number)

    text = f"For each segment id, the {kind} of the rows that have it."
    return array_function(published(function, f"unsorted_segment_{kind}", text))


def _counts(data: Any, ids: Any, number: int, dtype: Any) -> Any:
    counts = jax.ops.segment_sum(jnp.ones(ids.shape, dtype), ids, number)
    return counts.reshape((number,) + (1,) * (data.ndim - 1))


def _mean(data: Any, ids: Any, number: int) -> Any:
    counts = jnp.maximum(_counts(data, ids, number, data.dtype), 1)
    return jax.ops.segment_sum(data, ids, number) / counts


def _over_root(data: Any, ids: Any, number: int) -> Any:
    counts = jnp.maximum(_counts(data, ids, number, data.dtype), 1)
    return jax.ops.segment_sum(data, ids, number) / jnp.sqrt(counts)


def _where_none(value: str | int, reduce: Reduce) -> Reduce:
    """The reduction, and for an id without rows a value, or this limit of the type."""

    def compute(data: Any, ids: Any, number: int) -> Any:
        missing = getattr(as_dtype(data.dtype), value) if isinstance(value, str) else value
        there = _counts(data, ids, number, np.int32) > 0
        return jnp.where(there, reduce(data, ids, number), missing)

    return compute


segment_max = _sorted("max", _where_none(0, jax.ops.segment_max))
segment_mean = _sorted("mean", _mean)
segment_min = _sorted("min", _where_none(0, jax.ops.segment_min))
segment_prod = _sorted("prod", jax.ops.segment_prod)
segment_sum = _sorted("sum", jax.ops.segment_sum)
unsorted_segment_max = _unsorted("max", _where_none("min", jax.ops.segment_max))
unsorted_segment_mean = _unsorted("mean", _mean)
unsorted_segment_min = _unsorted("min", _where_none("max", jax.ops.segment_min))
unsorted_segment_prod = _unsorted("prod", jax.ops.segment_prod)
unsorted_segment_sqrt_n = _unsorted("sqrt_n", _over_root)
unsorted_segment_sum = _unsorted("sum", jax.ops.segment_sum)


@array_function
def bincount(
    arr: Any,
    weights: Any = None,
    minlength: Any = None,
    maxlength: Any = None,
    dtype: Any = int32,
    name: str | None = None,
    axis: Any = None,
    binary_output: bool = False,
) -> Any:
    """How often each integer occurs; inside compiled code only if the two lengths are equal."""
    if axis not in (None, 0, -1):
        raise UsageError.of("axis", "None, 0 or -1", axis)
    if minlength is not None and minlength == maxlength:
        length = int(minlength)
    else:
        values = concrete(arr, "bincount")
        if values.min(initial=0) < 0:
            raise UsageError.of("arr", "integers of at least 0", int(values.min()))
        length = max(int(values.max(initial=-1)) + 1, int(minlength or 0))
        length = length if maxlength is None else min(length, int(maxlength))
    values = jnp.asarray(arr)
    rows = values if axis == -1 and values.ndim > 1 else values.reshape(1, -1)
    kind = jnp.asarray(weights).dtype if weights is not None else numpy_dtype(dtype, jnp)
    parts = jnp.ones(rows.shape, kind) if weights is None else jnp.asarray(weights)
    # What is too large falls out of the sum.
    count = jax.vmap(lambda part, row: jax.ops.segment_sum(part, row, length))
    found = count(parts.reshape(rows.shape), rows)
    found = (found != 0).astype(kind) if binary_output else found
    return found if rows is values else found[0]


@array_function
def confusion_matrix(
    labels: Any,
    predictions: Any,
    num_classes: Any = None,
    weights: Any = None,
    dtype: Any = int32,
    name: str | None = None,
) -> Any:
    """How often each class (row) was predicted as each class (column).

    In compiled code `num_classes` must be given.
    """
    if num_classes is None:
        both = [concrete(found, "confusion_matrix") for found in (labels, predictions)]
        num_classes = 1 + max(int(found.max(initial=-1)) for found in both)
    number, kind = static_size(num_classes), numpy_dtype(dtype, jnp)
    _, (labels, predictions) = arrays(labels, predictions)
    places = (jnp.asarray(labels).ravel(), jnp.asarray(predictions).ravel())
    check_places(places[:1], [number], "labels")
    check_places(places[1:], [number], "predictions")
    counts = 1 if weights is None else jnp.asarray(weights).astype(kind).ravel()
    empty = jnp.zeros((number, number), kind)
    return empty.at[places].add(counts, wrap_negative_indices=False)
