"""Rows of a table by id; tables on parameter servers have a method `lookup_rows`.

`embedding_lookup` and `embedding_lookup_sparse` are published in `replicax.nn`. Sparse ids have
fixed shapes, as JAX needs them: entries without an id are masked.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from replicax._core.errors import IndexOutOfBounds, UsageError
from replicax._core.tracing import is_transformed

NO_ID = -1  # an argument of `lookup_rows` whose row is not used


def embedding_lookup(params: Any, ids: Any, max_norm: float | None = None) -> Any:
    """Look up rows of a table.

    The counterpart of `tf.nn.embedding_lookup`. Of a variable that lives on parameter servers only
    these rows travel, each of them once.

    **Differs from TF:** an id that the table does not have gives a row of NaN, which shows in the
    loss, where TensorFlow raises an error; compiled code cannot raise one.

    Args:
        params: An array or variable; or a list of them, whose rows follow one upon another.
        ids: Integers of any shape, each the number of a row.
        max_norm: Rows with a larger Euclidean norm are scaled down to it.

    Returns:
        An array of shape `ids.shape + params.shape[1:]`.

    Raises:
        UsageError: If the ids are not integers, or there is no table.

    Example:
        >>> import jax.numpy as jnp
        >>> import replicax as rx
        >>> shards = [jnp.array([[1, 2], [3, 4]]), jnp.array([[5, 6]])]
        >>> rx.nn.embedding_lookup(shards, [0, 2]).tolist()
        [[1, 2], [5, 6]]
    """
    # NumPy keeps 64-bit ids, which JAX would cut to 32 bits.
    ids = ids if isinstance(ids, jax.Array) else np.asarray(ids)
    if not jnp.issubdtype(ids.dtype, jnp.integer):
        raise UsageError(
            f"Ids must be integers, the numbers of rows; got dtype {ids.dtype}. Convert them."
        )
    rows = lookup(params, ids)
    return rows if max_norm is None else _clip_norm(rows, max_norm, ids.ndim)


def embedding_lookup_sparse(
    params: Any,
    sp_ids: Any,
    sp_weights: Any = None,
    combiner: str | None = None,
    max_norm: float | None = None,
    *,
    padding_value: int = NO_ID,
) -> Any:
    """Look up the rows of several ids per example, and combine them into one row.

    The counterpart of `tf.nn.embedding_lookup_sparse`. An example without ids gives a row of zeros.

    Args:
        params: As in `embedding_lookup`.
        sp_ids: The ids of each example: a `jax.experimental.sparse.BCOO` matrix; a triple
            (indices, values, dense_shape) of a sparse matrix; or an array of shape
            (examples, most ids of one), filled up with `padding_value`.
        sp_weights: A weight for each id, in the same form, or its values only. None for 1.
        combiner: `"mean"` divides the weighted sum by the sum of the weights, `"sqrtn"` by the
            root of the sum of their squares, `"sum"` by nothing. None is `"mean"`.
        max_norm: Rows with a larger Euclidean norm are scaled down to it before they are combined.
        padding_value: The id that stands where there is none, in any of the forms.

    Returns:
        An array of shape (examples, …): the shape of one row behind the number of examples.

    Raises:
        UsageError: If the ids, the weights or the combiner are of another kind.

    Example:
        >>> import jax.numpy as jnp
        >>> import replicax as rx
        >>> table = jnp.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
        >>> rx.nn.embedding_lookup_sparse(table, jnp.array([[0, 2], [1, -1]])).tolist()
        [[3.0, 4.0], [3.0, 4.0]]
    """
    combiner = combiner or "mean"
    if combiner not in ("mean", "sum", "sqrtn"):
        raise UsageError.of("combiner", "'mean', 'sum', 'sqrtn' or None for the mean", combiner)
    sparse = _SparseIds.read(sp_ids, padding_value)
    rows = embedding_lookup(params, jnp.where(sparse.there, sparse.ids, NO_ID), max_norm)
    # Half precision is summed in single precision, as in TensorFlow.
    kind = jnp.promote_types(rows.dtype, jnp.float32)
    weights = jnp.where(sparse.there, sparse.weights(sp_weights), 0).astype(kind)
    # A missing row may be NaN, and 0 · NaN is NaN.
    there = sparse.there.reshape(_padded_shape(sparse.there, rows.ndim))
    weighted = jnp.where(there, rows, 0).astype(kind) * weights.reshape(there.shape)
    combined = sparse.sum(weighted)
    if combiner != "sum":
        scale = sparse.sum(weights if combiner == "mean" else weights * weights)
        scale = scale.reshape(_padded_shape(scale, combined.ndim))
        empty = scale == 0
        scale = jnp.where(empty, 1, scale)  # the gradient, too, must not divide by 0
        scale = scale if combiner == "mean" else jnp.sqrt(scale)
        combined = jnp.where(empty, 0, combined / scale)
    return combined.astype(rows.dtype if jnp.issubdtype(rows.dtype, jnp.inexact) else kind)


def lookup(params: Any, ids: Any) -> Any:
    """Look up rows in an array, a variable, a list of shards, or a table with `lookup_rows(ids)`.

    A missing row is NaN, or the fill value of `jnp.take(mode="fill")` for integers.
    """
    if isinstance(params, list | tuple):
        return _lookup_in_shards(list(params), ids)  # pyright: ignore[reportUnknownArgumentType]
    lookup_rows = getattr(params, "lookup_rows", None)
    if callable(lookup_rows):
        return lookup_rows(ids)
    table = jnp.asarray(params)
    ids, inside = _in_range(ids, table.shape[0])
    # -1 would count from the end.
    return jnp.take(table, jnp.where(inside, ids, table.shape[0]), axis=0, mode="fill")


def _lookup_in_shards(shards: list[Any], ids: Any) -> Any:
    """Look up all ids in every shard, and select each row from its shard."""
    if not shards:
        raise UsageError(
            "Cannot look up rows in an empty list. Pass the variable, or all its shards."
        )
    starts = list(accumulate((shard.shape[0] for shard in shards), initial=0))
    result = None
    for shard, start in zip(shards, starts[:-1], strict=True):
        local, inside = _in_range(ids - start, shard.shape[0])
        rows = lookup(shard, jnp.where(inside, local, NO_ID))
        if result is not None:
            rows = jnp.where(inside.reshape(_padded_shape(inside, rows.ndim)), rows, result)
        result = rows
    return result


def check_places(
    places: Sequence[Any], sizes: Sequence[Any], name: str = "indices", least: int | None = 0
) -> None:
    """Refuse indices outside of an array, one array of indices for each axis.

    Only values that are `host_value` are checked. `least` is the least index; None for any.
    """
    for indices, size in zip(places, sizes, strict=False):
        numbers = host_value(indices) if isinstance(size, int) else None
        if numbers is None:
            continue
        wrong = numbers >= size
        if least is not None:
            wrong |= numbers < least
        if wrong.any():
            allowed = f"from 0 to {size - 1}" if size else "empty, as the axis is"
            raise IndexOutOfBounds.of(name, allowed, int(numbers[wrong].flat[0]))


def host_value(value: Any) -> np.ndarray | None:
    """The numbers of a value if they are in host memory; None in compiled code.

    To read an accelerator's memory waits for its computations.
    """
    if isinstance(value, Tracer) or is_transformed():
        return None
    if isinstance(value, jax.Array):
        here = value.is_fully_addressable and all(d.platform == "cpu" for d in value.devices())
        return np.asarray(value) if here else None
    return np.asarray(value)


def _in_range(ids: Any, rows: int) -> tuple[Any, Any]:
    """The ids, of a type that holds the number of rows, and whether each is in range."""
    if ids.dtype.itemsize < 4:
        ids = ids.astype(np.int32)
    return ids, (ids >= 0) & (ids < rows)


def _clip_norm(rows: Any, max_norm: float, id_axes: int) -> Any:
    squares = jnp.sum(rows * rows, axis=tuple(range(id_axes, rows.ndim)), keepdims=True)
    # The root has no gradient at 0.
    long = squares > max_norm**2
    return jnp.where(long, rows * max_norm / jnp.sqrt(jnp.where(long, squares, 1)), rows)


def _padded_shape(array: Any, ndim: int) -> tuple[int, ...]:
    return (*array.shape, *[1] * (ndim - array.ndim))


@dataclass(frozen=True)
class _SparseIds:
    """Several ids per example, in an array of shape (examples, ids), or in one flat array."""

    ids: Any
    there: Any  # False for padding
    example: Any  # the example of each id of a flat array
    examples: int

    @classmethod
    def read(cls, sp_ids: Any, padding_value: int) -> _SparseIds:
        if _is_triple(sp_ids):
            indices, ids, shape = sp_ids
        elif hasattr(sp_ids, "indices") and hasattr(sp_ids, "data"):
            indices, ids, shape = sp_ids.indices, sp_ids.data, sp_ids.shape
        else:
            ids = jnp.asarray(sp_ids)
            if ids.ndim != 2:
                raise _not_a_matrix(f"an array with {ids.ndim} axes")
            return cls(ids, ids != padding_value, None, ids.shape[0])
        indices, ids = jnp.asarray(indices), jnp.asarray(ids)
        if indices.ndim != 2 or ids.shape != indices.shape[:1]:
            raise _not_a_matrix(f"indices of shape {indices.shape} for ids of shape {ids.shape}")
        examples = int(shape[0])
        # A padded BCOO matrix has indices outside its shape.
        there = (ids != padding_value) & (indices[:, 0] < examples)
        return cls(ids, there, indices[:, 0], examples)

    def weights(self, sp_weights: Any) -> Any:
        if sp_weights is None:
            return jnp.ones(self.ids.shape)
        if _is_triple(sp_weights):
            sp_weights = sp_weights[1]
        elif hasattr(sp_weights, "indices") and hasattr(sp_weights, "data"):
            sp_weights = sp_weights.data
        weights = jnp.asarray(sp_weights)
        if weights.shape != self.ids.shape:
            raise UsageError(
                f"Weights of shape {weights.shape} do not match ids of shape {self.ids.shape}. "
                "Pass one weight for each id."
            )
        return weights

    def sum(self, terms: Any) -> Any:
        if self.example is None:
            return jnp.sum(terms, axis=1)
        return jax.ops.segment_sum(terms, self.example, self.examples)


def _is_triple(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 3  # pyright: ignore[reportUnknownArgumentType]


def _not_a_matrix(received: str) -> UsageError:
    return UsageError(
        f"Sparse ids must have one row for each example, got {received}. Pass a BCOO matrix, a "
        "triple (indices, values, dense_shape), or an array of shape (examples, ids)."
    )
