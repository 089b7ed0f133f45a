"""Sums and the like of groups of rows: segments, counts of integers, confusion matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from replicax.tf._calls import array_function, arrays, concrete, numpy_dtype, published, static_size
from replicax.tf._dtypes import as_dtype, int32

Reduce = Callable[[Any, Any, int], Any]


def _sorted(kind: str, reduce: Reduce) -> Callable[..., Any]:
    """`segment_…`: a function of the rows with the same id, which stand together."""

    def function(data: Any, segment_ids: Any, name: str | None = None) -> Any:
        ids = concrete(segment_ids, function.__name__)
        return reduce(jnp.asarray(data), ids, int(ids[-1]) + 1 if ids.size else 0)

    text = f"For each segment id, the {kind} of the rows that have it."
    return array_function(published(function, f"segment_{kind}", text))


def _unsorted(kind: str, reduce: Reduce) -> Callable[..., Any]:
    """`unsorted_segment_…`: a function of the rows with the same id, wherever they stand."""

    def function(data: Any, segment_ids: Any, num_segments: Any, name: str | None = None) -> Any:
        ids = jnp.asarray(segment_ids)
        data = jnp.asarray(data)
        rows = data.reshape(ids.size, *data.shape[ids.ndim :])
        return reduce(rows, ids.ravel(), static_size(num_segments))

    text = f"For each segment id, the {kind} of the rows that have it."
    return array_function(published(function, f"unsorted_segment_{kind}", text))


def _counts(data: Any, ids: Any, number: int, dtype: Any) -> Any:
    """How many rows each id has, with the axes of the rows."""
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
    if minlength is not None and minlength == maxlength:
        length = int(minlength)
    else:
        values = concrete(arr, "bincount")
        length = max(int(values.max(initial=-1)) + 1, int(minlength or 0))
        length = length if maxlength is None else min(length, int(maxlength))
    values = jnp.asarray(arr)
    rows = values.reshape(1, -1) if axis is None else values
    kind = jnp.asarray(weights).dtype if weights is not None else numpy_dtype(dtype, jnp)
    parts = jnp.ones(rows.shape, kind) if weights is None else jnp.asarray(weights)
    # What is too large falls out of the sum.
    count = jax.vmap(lambda part, row: jax.ops.segment_sum(part, row, length))
    found = count(parts.reshape(rows.shape), rows)
    found = (found != 0).astype(kind) if binary_output else found
    return found[0] if axis is None else found


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
        both = (concrete(found, "confusion_matrix") for found in (labels, predictions))
        num_classes = 1 + max(int(found.max(initial=-1)) for found in both)
    number, kind = static_size(num_classes), numpy_dtype(dtype, jnp)
    _, (labels, predictions) = arrays(labels, predictions)
    places = (jnp.asarray(labels).ravel(), jnp.asarray(predictions).ravel())
    counts = 1 if weights is None else jnp.asarray(weights).astype(kind).ravel()
    return jnp.zeros((number, number), kind).at[places].add(counts)
