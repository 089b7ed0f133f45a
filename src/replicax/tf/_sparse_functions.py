"""The functions of `tf.sparse`.

What has a number of elements that depends on values, such as the sum of two sparse tensors, is
computed outside of compiled code.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from replicax._core.errors import UsageError
from replicax.data._host import HostTensor
from replicax.tf._calls import (
    apart,
    array,
    concrete,
    hosted,
    new_axis,
    published,
    static_shape,
)
from replicax.tf._composite import (
    axes_within,
    elements,
    filling,
    is_text,
    lowest,
    of_values,
    put,
)
from replicax.tf._debugging import assert_less
from replicax.tf._sparse import SparseTensor, sparse


def _ordered(indices: Any, values: Any, shape: Any) -> SparseTensor:
    """A sparse tensor in the order of the rows of a matrix."""
    xp = jnp if isinstance(indices, Tracer) else np
    order = xp.lexsort(tuple(indices.T[::-1]))
    return SparseTensor(indices[order], values[order], shape)


def _columns(tensor: SparseTensor, xp: Any) -> list[Any]:
    return [*xp.asarray(tensor.indices).T]


def from_dense(tensor: Any, name: str | None = None) -> SparseTensor:
    """The elements that are not 0, or not an empty text; not in compiled code."""
    held = concrete(tensor, "tf.sparse.from_dense")
    none = ~(held.astype(bool)) if held.dtype == object else held == 0
    where = np.argwhere(~none)
    return SparseTensor(where, elements(tensor)[tuple(where.T)], held.shape)


def to_dense(
    sp_input: Any, default_value: Any = None, validate_indices: bool = True, name: Any = None
) -> Any:
    """The whole tensor as an array.

    Raises:
        UsageError: If places are held twice, or not in order.
    """
    tensor = sparse(sp_input, "tf.sparse.to_dense")
    xp, values = array(tensor.values)
    where = tuple(_columns(tensor, xp))
    if validate_indices and where and values.size > 1:
        # Of 64 bits on the host: there are more places than int32 has numbers.
        module: Any = jnp if isinstance(tensor.indices, Tracer) else np
        flat = module.ravel_multi_index(tuple(tensor.indices.T), tensor.shape, mode="clip")
        message = (
            "The numbers are positions of neighbouring elements, of which each must be less than "
            "the next: the indices of the sparse tensor are not sorted by rows, or repeat. Sort "
            "them with `tf.sparse.reorder`; add up repeated ones, or pass `validate_indices=False`"
        )
        assert_less(flat[:-1], flat[1:], message)
    return put(xp.full(tensor.shape, filling(values, default_value), values.dtype), where, values)


def reorder(sp_input: Any, name: str | None = None) -> SparseTensor:
    """The elements in the order of the rows of a matrix."""
    tensor = sparse(sp_input, "tf.sparse.reorder")
    return _ordered(tensor.indices, tensor.values, tensor.shape)


def reset_shape(sp_input: Any, new_shape: Any = None) -> SparseTensor:
    """The same elements in a larger shape; without one, in the smallest that holds them.

    Raises:
        UsageError: If the shape has other axes, or is smaller.
    """
    tensor = sparse(sp_input, "tf.sparse.reset_shape")
    if new_shape is None:
        where = concrete(tensor.indices, "tf.sparse.reset_shape")
        shape = tuple(int(most) + 1 for most in where.max(0, initial=-1))
        return SparseTensor(tensor.indices, tensor.values, shape)
    shape = static_shape(new_shape)
    if len(shape) != len(tensor.shape) or any(map(operator.lt, shape, tensor.shape)):
        raise UsageError(
            f"`tf.sparse.reset_shape` got the shape {shape} for {tensor}. Use a shape with as many "
            "axes, none of them shorter; cut with `tf.sparse.slice`."
        )
    return SparseTensor(tensor.indices, tensor.values, shape)


def map_values(op: Callable[..., Any], *args: Any, **kwargs: Any) -> SparseTensor:
    """A function of the elements that are held; of several tensors with the same places.

    Raises:
        UsageError: If there is no sparse tensor, or places differ.
    """
    given = [*args, *kwargs.values()]
    found = [one for one in given if isinstance(one, SparseTensor)]
    first = sparse(found[0] if found else given and given[0], "tf.sparse.map_values")
    for one in found[1:]:
        if one.indices is not first.indices:
            places_of = [concrete(each.indices, "tf.sparse.map_values") for each in (one, first)]
            if one.shape != first.shape or not np.array_equal(places_of[0], places_of[1]):
                raise UsageError(
                    f"`tf.sparse.map_values` needs tensors with the same indices, got {first} and "
                    f"{one}. Use `tf.sparse.add`, or arrays."
                )

    return of_values(op, args, kwargs, first)


def add(a: Any, b: Any, threshold: Any = 0) -> Any:
    """The sum of two sparse tensors, outside of compiled code; or of one and an array, an array.

    Raises:
        UsageError: If neither is sparse, or the shapes differ.
    """
    if not isinstance(b, SparseTensor):
        a, b = b, a
    b = sparse(b, "tf.sparse.add")
    if not isinstance(a, SparseTensor):
        xp, (whole, values) = apart(a, b.values)
        _check_shapes(tuple(whole.shape), b.shape)
        start = whole if xp is jnp else np.array(whole, np.result_type(whole, values))
        return put(start, tuple(_columns(b, xp)), values, "add")
    _check_shapes(a.shape, b.shape)
    both = [concrete(one.indices, "tf.sparse.add") for one in (a, b)]
    where, numbers, counts = np.unique(
        np.concatenate(both), axis=0, return_inverse=True, return_counts=True
    )
    xp, (first, second) = apart(a.values, b.values)
    values = xp.concatenate([first, second])
    total = put(xp.zeros(len(where), values.dtype), numbers.reshape(-1), values, "add")
    if threshold:
        kept = (counts == 1) | (np.abs(concrete(total, "tf.sparse.add")) >= threshold)
        where, total = where[kept], total[kept]
    return SparseTensor(where, total, a.shape)


def _check_shapes(first: Any, second: Any) -> None:
    if first != second:
        raise UsageError(f"Cannot add shapes {first} and {second}. Reshape one of them.")


def sparse_dense_matmul(
    sp_a: Any, b: Any, adjoint_a: bool = False, adjoint_b: bool = False, name: Any = None
) -> Any:
    """The product of a sparse matrix and an array, or the other way round; an array.

    Raises:
        UsageError: If not exactly one is sparse, or the shapes do not fit.
    """
    if not isinstance(sp_a, SparseTensor):
        # a · b = (bᴴ · aᴴ)ᴴ
        swapped = sparse_dense_matmul(b, sp_a, not adjoint_b, not adjoint_a)
        return hosted(swapped.conj().T)
    xp, (values, right) = apart(sp_a.values, b)
    rows, columns = _columns(sp_a, xp) if len(sp_a.shape) == 2 else (None, None)
    height, width = sp_a.shape if len(sp_a.shape) == 2 else (0, -1)
    if adjoint_a:
        rows, columns, values = columns, rows, values.conj()
        height, width = width, height
    right = right.conj().T if adjoint_b else right
    if right.ndim != 2 or right.shape[0] != width:
        raise UsageError(
            f"Cannot multiply matrices of shapes {sp_a.shape} and {tuple(right.shape)} with "
            f"adjoint_a={adjoint_a}. Transpose one of them."
        )
    kind = xp.result_type(values, right)
    products = values[:, None] * right[columns]
    return put(xp.zeros((height, right.shape[1]), kind), rows, products, "add")


def _reduction(name: str, how: str, text: str) -> Any:
    def reduce(
        sp_input: Any,
        axis: Any = None,
        keepdims: bool | None = None,
        output_is_sparse: bool = False,
        name: str | None = None,
    ) -> Any:
        tensor = sparse(sp_input, f"tf.sparse.{reduce.__name__}")
        if output_is_sparse:
            raise UsageError(
                f"`tf.sparse.{reduce.__name__}` cannot return a sparse tensor. Leave out "
                "output_is_sparse=True, and call `tf.sparse.from_dense` on the result."
            )
        xp, values = array(tensor.values)
        gone = axes_within(len(tensor.shape), axis)
        left = [number for number in range(len(tensor.shape)) if number not in gone]
        columns, sizes = _columns(tensor, xp), [tensor.shape[number] for number in left]
        # A number has no axis to add along, so it is the one element of a vector.
        where = tuple(columns[number] for number in left) or (xp.zeros(values.size, np.int32),)
        start = lowest(values.dtype) if how == "max" else 0
        found = put(xp.full(sizes or [1], start, values.dtype), where, values, how)
        if how == "max":
            there = put(xp.zeros(sizes or [1], bool), where, True)
            found = hosted(xp.where(there, found, xp.zeros((), values.dtype)))
        kept = [1 if number in gone else size for number, size in enumerate(tensor.shape)]
        return found.reshape(kept if keepdims else sizes)

    return published(reduce, name, text)


reduce_sum = _reduction(
    "reduce_sum", "add", "The sum over axes, an array; the arguments are as in `tf.reduce_sum`."
)
reduce_max = _reduction(
    "reduce_max", "max", "The largest of the elements that are held, over axes; of none, 0."
)


def transpose(sp_input: Any, perm: Any = None, name: str | None = None) -> SparseTensor:
    """The tensor with its axes in another order; reversed, by default."""
    tensor = sparse(sp_input, "tf.sparse.transpose")
    order = range(len(tensor.shape))[::-1] if perm is None else static_shape(perm)
    shape = tuple(tensor.shape[axis] for axis in order)
    return _ordered(tensor.indices[:, list(order)], tensor.values, shape)


def expand_dims(sp_input: Any, axis: Any = None, name: str | None = None) -> SparseTensor:
    """The tensor with an axis of one; the last, by default."""
    tensor = sparse(sp_input, "tf.sparse.expand_dims")
    place = new_axis(-1 if axis is None else axis, len(tensor.shape))
    shape = (*tensor.shape[:place], 1, *tensor.shape[place:])
    xp = jnp if isinstance(tensor.indices, Tracer) else np
    return SparseTensor(xp.insert(tensor.indices, place, 0, axis=1), tensor.values, shape)


def reshape(sp_input: Any, shape: Any, name: str | None = None) -> SparseTensor:
    """The elements in another shape, in which -1 is computed; not in compiled code."""
    tensor = sparse(sp_input, "tf.sparse.reshape")
    wanted, count = list(static_shape(shape)), math.prod(tensor.shape)
    if -1 in wanted:
        place = wanted.index(-1)
        wanted[place] = count // max(1, math.prod(wanted[:place] + wanted[place + 1 :]))
    if math.prod(wanted) != count:
        raise UsageError(f"Cannot reshape a tensor of shape {list(tensor.shape)} to {wanted}.")
    where = concrete(tensor.indices, "tf.sparse.reshape")
    flat = np.ravel_multi_index(tuple(where.T), tensor.shape)
    where = np.stack(np.unravel_index(flat, wanted), axis=-1)
    return SparseTensor(where, tensor.values, wanted)


def slice(sp_input: Any, start: Any, size: Any, name: str | None = None) -> SparseTensor:
    """The part from `start` on, of `size`, as far as there is one; not in compiled code."""
    tensor = sparse(sp_input, "tf.sparse.slice")
    first, wanted, whole = map(np.asarray, (start, size, tensor.shape))
    shape = np.clip(np.minimum(wanted, whole - first), 0, None)
    where = concrete(tensor.indices, "tf.sparse.slice") - first
    inside = np.all((where >= 0) & (where < shape), axis=1)
    return SparseTensor(where[inside], tensor.values[inside], shape)


def concat(
    axis: Any, sp_inputs: Any, expand_nonconcat_dims: bool = False, name: str | None = None
) -> SparseTensor:
    """Several tensors one after the other along an axis.

    Raises:
        UsageError: If other axes differ.
    """
    tensors = [sparse(one, "tf.sparse.concat") for one in sp_inputs]
    (place,) = axes_within(len(tensors[0].shape), axis)
    ranks = {len(one.shape) for one in tensors}
    shapes = np.array([one.shape for one in tensors]) if len(ranks) == 1 else None
    others = None if shapes is None else np.delete(shapes, place, axis=1)
    if others is None or (np.any(others != others[0]) and not expand_nonconcat_dims):
        raise UsageError(
            f"Cannot concatenate sparse tensors of shapes {[one.shape for one in tensors]} along "
            f"axis={axis}. Bring them to one shape, or pass `expand_nonconcat_dims=True`."
        )
    shape = np.max(shapes, axis=0)  # pyright: ignore[reportArgumentType, reportCallIssue]
    sizes = [one.shape[place] for one in tensors]
    shape[place] = sum(sizes)
    xp, parts = apart(*(one.values for one in tensors))
    before = np.eye(len(shape), dtype=np.int64)[place]
    where = [one.indices + before * sum(sizes[:number]) for number, one in enumerate(tensors)]
    kind = jnp if any(isinstance(one, Tracer) for one in where) else np
    return _ordered(kind.concatenate(where), hosted(xp.concatenate(parts)), shape)


def retain(sp_input: Any, to_retain: Any) -> SparseTensor:
    """The elements of which a mask says so; not in compiled code."""
    tensor = sparse(sp_input, "tf.sparse.retain")
    kept = concrete(to_retain, "tf.sparse.retain").astype(bool)
    where = concrete(tensor.indices, "tf.sparse.retain")
    if kept.shape != (len(where),):
        must_be = f"a vector of {len(where)} flags, one for each value"
        raise UsageError.of("to_retain", must_be, to_retain)
    return SparseTensor(where[kept], tensor.values[kept], tensor.shape)


def fill_empty_rows(
    sp_input: Any, default_value: Any, name: str | None = None
) -> tuple[SparseTensor, Any]:
    """The tensor with an element in each row that had none, and which rows those are.

    It is not computed in compiled code.
    """
    tensor = sparse(sp_input, "tf.sparse.fill_empty_rows")
    where = concrete(tensor.indices, "tf.sparse.fill_empty_rows")
    empty = ~np.isin(np.arange(tensor.shape[0]), where[:, 0])
    added = np.zeros((int(empty.sum()), len(tensor.shape)), np.int64)
    added[:, 0] = np.flatnonzero(empty)
    xp, values = array(tensor.values)
    more = xp.full(len(added), default_value, values.dtype)
    both = hosted(xp.concatenate([values, more]))
    filled = _ordered(np.concatenate([where, added]), both, tensor.shape)
    return filled, HostTensor.of(empty)


def to_indicator(sp_input: Any, vocab_size: Any, name: str | None = None) -> Any:
    """Which ids each row holds: an array that is True at the ids; its last axis is the ids'."""
    tensor = sparse(sp_input, "tf.sparse.to_indicator")
    xp, values = array(tensor.values)
    ids = np.asarray(values) if not isinstance(values, Tracer) else None
    if is_text(values) or (ids is not None and np.any((ids < 0) | (ids >= vocab_size))):
        raise UsageError(
            f"Ids must be integers from 0 to {int(vocab_size) - 1}, got {tensor}. Correct "
            "`vocab_size`, or look up texts in a table first."
        )
    where = (*_columns(tensor, xp)[:-1], values)
    return put(xp.zeros((*tensor.shape[:-1], int(vocab_size)), bool), where, True)
