"""Functions of ragged tensors: elementwise, over axes, of rows; and `tf.ragged`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from replicax._core.errors import UsageError
from replicax.data._host import HostTensor
from replicax.tf import _arrays, _elementwise, _indexing, _reductions
from replicax.tf._calls import (
    apart,
    array,
    axes_of,
    composite_among,
    concrete,
    hosted,
    of_python,
    static_size,
)
from replicax.tf._composite import axes_within, elements, lowest, of_values
from replicax.tf._dtypes import as_dtype, int64
from replicax.tf._ragged import RaggedTensor
from replicax.tf._sparse import SparseTensor

# Beside those of `_elementwise.py`.
_OF_ELEMENTS = {
    "dropout", "elu", "gelu", "identity", "leaky_relu", "ones_like", "relu", "relu6", "selu",
    "silu", "softplus", "softsign", "zeros_like",
}  # fmt: skip
_NOT_OF_ELEMENTS = {"add_n", "bitcast"}


def called(function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """The result of an array function with ragged tensors among its arguments."""
    name = function.__name__
    if name in _FUNCTIONS:
        return _FUNCTIONS[name](*args, **kwargs)
    of_elements = function.__module__ == _elementwise.__name__ and name not in _NOT_OF_ELEMENTS
    if of_elements or name in _OF_ELEMENTS or (name == "where" and len(args) + len(kwargs) > 1):
        return of_each(function, args, kwargs)
    raise composite_among((args, kwargs))[0].refused(f"an argument of `tf.{name}` here")


def of_each(function: Callable[..., Any], args: Any, kwargs: Any) -> RaggedTensor:
    """A function of each element; arrays are broadcast along the rows."""
    first = next(one for one in (*args, *kwargs.values()) if isinstance(one, RaggedTensor))

    def flat(value: Any) -> Any:
        if isinstance(value, RaggedTensor):
            _check_rows([first, value])
            return value.values
        if isinstance(value, SparseTensor):
            raise value.refused("combined with a ragged tensor")
        # A type such as `np.float32` has an attribute `ndim`, too.
        is_array = isinstance(value, list) or (
            not isinstance(value, type) and getattr(value, "ndim", 0)
        )
        return _spread(first, value) if is_array else value

    flats = {name: flat(value) for name, value in kwargs.items()}
    return first.with_values(function(*map(flat, args), **flats))


def _check_rows(tensors: Sequence[RaggedTensor]) -> None:
    lengths = [one.row_lengths().tolist() for one in tensors]
    if any(one != lengths[0] for one in lengths):
        raise UsageError(
            "Cannot combine ragged tensors with rows of different lengths: "
            f"{' and '.join(map(str, lengths))}. Make arrays of them with `to_tensor()`."
        )


def _spread(rows: RaggedTensor, value: Any) -> Any:
    """An array as it is combined with the elements of rows."""
    whole, inner = array(value)[1], rows.values.ndim - 1
    if whole.ndim <= inner or (whole.ndim == inner + 1 and whole.shape[0] == 1):
        return whole
    if whole.ndim == inner + 2 and whole.shape[1] == 1:
        if whole.shape[0] == 1:
            return whole[:, 0]
        if whole.shape[0] == rows.nrows():
            return whole[:, 0][rows.value_rowids().view(np.ndarray)]
    raise UsageError(
        f"Cannot combine an array of shape {tuple(whole.shape)} with a ragged tensor of shape "
        f"{rows.shape}. Give it the shape [rows, 1], or make an array of the rows with "
        "`to_tensor()`."
    )


def _over_axes(name: str, of_rows: Callable[[RaggedTensor, list[int], bool], Any]) -> Any:
    """A reduction; behind the ragged axis it reduces the elements of rows, as for arrays."""

    def reduce(input_tensor: Any, axis: Any = None, keepdims: bool = False, **_: Any) -> Any:
        gone = axes_within(input_tensor.values.ndim + 1, axis)
        if min(gone, default=0) < 2:
            return of_rows(input_tensor, gone, keepdims)
        flat = getattr(_reductions, name)(input_tensor.values, [one - 1 for one in gone], keepdims)
        return input_tensor.with_values(flat)

    return reduce


def _reduced(name: str, fill: Callable[[Any], Any], of_none: Callable[[Any], Any] | None) -> Any:
    """A reduction of rows that are filled up with what does not change it.

    `of_none` is the value of no elements, for a type, if it is another one.
    """
    reduce = getattr(_reductions, name)

    def of_rows(rows: RaggedTensor, gone: list[int], keepdims: bool) -> Any:
        if len(gone) > rows.values.ndim and not keepdims:
            return reduce(rows.values)
        xp, found = array(reduce(rows.to_tensor(fill(rows.dtype)), gone, keepdims))
        if of_none is None:
            return hosted(found)
        there = xp.asarray(_counts(rows, gone, keepdims) > 0)
        return hosted(xp.where(there, found, xp.asarray(of_none(rows.dtype), found.dtype)))

    return _over_axes(name, of_rows)


def _counts(rows: RaggedTensor, gone: list[int], keepdims: bool) -> np.ndarray:
    ones = RaggedTensor(np.ones(rows.values.shape, np.int64), rows.row_splits)
    return np.sum(ones.to_tensor(), axis=tuple(gone), keepdims=keepdims)


def _floating(values: Any) -> Any:
    return np.float32 if values.dtype.kind in "biu" else values.dtype


def _highest(kind: Any) -> Any:
    return np.inf if as_dtype(kind).is_floating else as_dtype(kind).max


def _mean(rows: RaggedTensor, gone: list[int], keepdims: bool) -> Any:
    # As in TensorFlow, of integers it is no integer.
    total = _FUNCTIONS["reduce_sum"](rows, gone, keepdims)
    kind = _floating(total)
    counts = _elementwise.cast(_counts(rows, gone, keepdims), kind)
    return _elementwise.truediv(_elementwise.cast(total, kind), counts)


def _variance(rows: RaggedTensor, gone: list[int], keepdims: bool) -> Any:
    held = _elementwise.cast(rows, _floating(rows))
    apart_ = held.to_tensor() - _mean(held, gone, keepdims=True)
    squares = RaggedTensor.from_tensor(apart_ * apart_, lengths=held.row_lengths())
    return _mean(squares, gone, keepdims)


def reduce_std(input_tensor: Any, axis: Any = None, keepdims: bool = False, **_: Any) -> Any:
    return _elementwise.sqrt(_FUNCTIONS["reduce_variance"](input_tensor, axis, keepdims))


def concat(values: Any, axis: Any, name: str | None = None) -> RaggedTensor:
    parts = [
        one if isinstance(one, RaggedTensor) else RaggedTensor.from_tensor(one) for one in values
    ]
    (place,) = axes_within(parts[0].values.ndim + 1, axis)
    if place > 1:
        _check_rows(parts)
        return parts[0].with_values(_arrays.concat([one.values for one in parts], place - 1))
    xp, flats = apart(*(one.values for one in parts))
    both, lengths = xp.concatenate(flats), [one.row_lengths() for one in parts]
    if not place:
        return RaggedTensor.from_row_lengths(hosted(both), np.concatenate(lengths))
    if len({len(one) for one in lengths}) > 1:
        raise UsageError(
            "Cannot concatenate ragged tensors of "
            f"{' and '.join(str(len(one)) for one in lengths)} rows along axis=1. Correct the "
            "tensors, or the axis."
        )
    order = np.argsort(np.concatenate([one.value_rowids() for one in parts]), kind="stable")
    return RaggedTensor.from_row_lengths(hosted(both[order]), np.sum(lengths, axis=0))


def expand_dims(input: Any, axis: Any, name: str | None = None) -> RaggedTensor:
    return input.with_values(_arrays.expand_dims(input.values, _inner(input, axis, 2)))


def squeeze(input: Any, axis: Any = None, name: str | None = None) -> RaggedTensor:
    return input.with_values(_arrays.squeeze(input.values, _inner(input, axis, 1)))


def _inner(rows: RaggedTensor, axis: Any, more: int) -> int:
    """An axis behind the ragged one, as an axis of the values."""
    given = np.ravel(axes_of(axis)).tolist()
    place = given[0] if len(given) == 1 and given[0] is not None else 0
    place += rows.values.ndim + more if place < 0 else 0
    if place < 2:
        raise UsageError(
            f"Cannot use axis={axis} of a ragged tensor of shape {rows.shape}. Choose an axis "
            "after the ragged one, or make an array with `to_tensor()`."
        )
    return place - 1


def gather(
    params: Any,
    indices: Any,
    validate_indices: Any = None,
    axis: Any = None,
    batch_dims: int = 0,
    name: str | None = None,
) -> Any:
    if not isinstance(params, RaggedTensor) and not axis and not batch_dims:
        return indices.with_values(_indexing.gather(params, indices.values))
    if isinstance(indices, RaggedTensor) or axis or batch_dims:
        ragged = params if isinstance(params, RaggedTensor) else indices
        raise ragged.refused("gathered along other axes than the first")
    numbers = concrete(indices, "tf.gather")
    if numbers.size and (numbers.min() < 0 or numbers.max() >= params.nrows()):
        raise UsageError.of("indices", f"from 0 to {params.nrows() - 1}", numbers.tolist())
    return params[int(numbers)] if not numbers.ndim else params.take_rows(numbers)


def reverse(tensor: Any, axis: Any, name: str | None = None) -> RaggedTensor:
    gone = axes_within(tensor.values.ndim + 1, axis)
    found = tensor.take_rows(np.arange(tensor.nrows())[::-1]) if 0 in gone else tensor
    found = found.take_in_rows(np.s_[::-1]) if 1 in gone else found
    inner = [one - 1 for one in gone if one > 1]
    return found.with_values(_arrays.reverse(found.values, inner)) if inner else found


def one_hot(indices: Any, depth: Any, *args: Any, **kwargs: Any) -> RaggedTensor:
    return indices.with_values(_arrays.one_hot(indices.values, depth, *args, **kwargs))


def embedding_lookup(params: Any, ids: Any, *args: Any, **kwargs: Any) -> RaggedTensor:
    from replicax._core.lookup import embedding_lookup as lookup

    return ids.with_values(lookup(params, ids.values, *args, **kwargs))


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "concat": concat,
    "embedding_lookup": embedding_lookup,
    "expand_dims": expand_dims,
    "gather": gather,
    "one_hot": one_hot,
    "reduce_all": _reduced("reduce_all", lambda kind: True, None),
    "reduce_any": _reduced("reduce_any", lambda kind: False, None),
    "reduce_max": _reduced("reduce_max", lowest, lambda kind: as_dtype(kind).min),
    "reduce_mean": _over_axes("reduce_mean", _mean),
    "reduce_min": _reduced("reduce_min", _highest, lambda kind: as_dtype(kind).max),
    "reduce_prod": _reduced("reduce_prod", lambda kind: 1, None),
    "reduce_std": reduce_std,
    "reduce_sum": _reduced("reduce_sum", lambda kind: 0, None),
    "reduce_variance": _over_axes("reduce_variance", _variance),
    "reverse": reverse,
    "squeeze": squeeze,
}


def constant(
    pylist: Any,
    dtype: Any = None,
    ragged_rank: int | None = None,
    inner_shape: Any = None,
    name: str | None = None,
    row_splits_dtype: Any = int64,
) -> Any:
    """Rows of numbers or of text, of nested lists.

    **Differs from TF:** `row_splits_dtype` has no effect.

    Raises:
        UsageError: If lists and numbers, or texts and numbers, stand side by side; or if rows of
            rows differ in length.
    """
    depths, kinds = _described(pylist)
    if len(kinds) > 1 or len(depths) > 1:
        raise UsageError(
            "Cannot make a ragged tensor of elements of different types or depths: "
            f"{pylist!r:.60}. Pass lists of numbers, or lists of texts."
        )
    depth = depths.pop() if depths else _depth(pylist)
    if depth < 2:
        return elements(_typed(pylist, dtype))
    if depth > 2 and ragged_rank != 1 and inner_shape is None:
        raise UsageError(
            f"Cannot make a ragged tensor of lists of {depth} levels: one axis can be ragged. "
            "Pass `ragged_rank=1` if the lists within rows are alike, or pad them."
        )
    rows = list(pylist)
    flat = [one for row in rows for one in row]
    if inner_shape is not None and not flat:
        flat = np.zeros((0, *inner_shape), np.float32)
    return RaggedTensor.from_row_lengths(elements(_typed(flat, dtype)), [len(row) for row in rows])


def _typed(values: Any, dtype: Any) -> Any:
    """Values with a type; without values, text's type or float32."""
    kind = None if dtype is None else as_dtype(dtype)
    if kind is not None and kind.name == "string":
        return of_python(list(values)) if len(values) else np.empty(0, object)
    held = np.float32 if kind is None and not len(values) else kind
    return elements(values, held) if held is not None else values


def _described(nest: Any) -> tuple[set[int], set[bool]]:
    """How deep the elements of a nest of lists stand, and whether they are text."""
    if isinstance(nest, np.ndarray):
        nest = nest.tolist()
    if not isinstance(nest, list | tuple):
        return {0}, {isinstance(nest, str | bytes)}
    found = [_described(part) for part in nest]
    return {d + 1 for depths, _ in found for d in depths}, set().union(*(k for _, k in found))


def _depth(nest: Any) -> int:
    return 1 + max(map(_depth, nest), default=0) if isinstance(nest, list | tuple) else 0


def stack(values: Any, axis: Any = 0, name: str | None = None) -> RaggedTensor:
    """Arrays of different lengths as the rows of one ragged tensor.

    Raises:
        UsageError: If the axis is another one than the first.
    """
    rows = [elements(value) for value in values]
    if axis or any(not row.ndim for row in rows):
        raise UsageError(
            f"Cannot stack arrays of {sorted({row.ndim for row in rows})} axes along axis={axis} "
            "as rows. Pass axis=0 and no scalars, or use `tf.stack` for arrays of one shape."
        )
    both = _arrays.concat(rows, 0)
    return RaggedTensor.from_row_lengths(both, [row.shape[0] for row in rows])


def map_flat_values(op: Callable[..., Any], *args: Any, **kwargs: Any) -> RaggedTensor:
    """A function of the elements of all rows; ragged tensors among its arguments are alike.

    Raises:
        UsageError: If rows differ in length, or there is no ragged tensor.
    """
    found = [one for one in (*args, *kwargs.values()) if isinstance(one, RaggedTensor)]
    if not found:
        raise UsageError(
            "`tf.ragged.map_flat_values` got no ragged tensor. Call the function itself."
        )
    _check_rows(found)
    return of_values(op, args, kwargs, found[0])


def boolean_mask(data: Any, mask: Any, name: str | None = None) -> RaggedTensor:
    """The elements of rows of which a mask of the same rows says so; not in compiled code.

    Raises:
        UsageError: If rows differ in length.
    """
    rows, kept = (
        one if isinstance(one, RaggedTensor) else RaggedTensor.from_tensor(one)
        for one in (data, mask)
    )
    _check_rows([rows, kept])
    there = concrete(kept.values, "tf.ragged.boolean_mask").astype(bool)
    ids = rows.value_rowids()[there]
    return RaggedTensor.from_value_rowids(rows.values[np.flatnonzero(there)], ids, rows.nrows())


def ragged_range(
    starts: Any,
    limits: Any = None,
    deltas: Any = 1,
    dtype: Any = None,
    name: str | None = None,
    row_splits_dtype: Any = int64,
) -> RaggedTensor:
    """The numbers from each start up to each limit, as rows; not in compiled code.

    **Differs from TF:** `row_splits_dtype` has no effect.
    """
    first, last = (0, starts) if limits is None else (starts, limits)
    given = [concrete(one, "tf.ragged.range") for one in (first, last, deltas)]
    ends = np.broadcast_arrays(*(np.atleast_1d(one) for one in given))
    rows = [np.arange(*each) for each in zip(*ends, strict=True)]
    kind = np.result_type(*ends) if dtype is None else np.dtype(as_dtype(dtype).dtype)
    flat = np.concatenate([np.zeros(0, kind), *rows]).astype(kind)
    return RaggedTensor.from_row_lengths(elements(flat), [len(row) for row in rows])


def row_splits_to_segment_ids(splits: Any, name: Any = None, out_type: Any = None) -> HostTensor:
    """The row of each element, of where rows begin."""
    held = concrete(splits, "tf.ragged.row_splits_to_segment_ids")
    return HostTensor.of(np.repeat(np.arange(len(held) - 1), np.diff(held)))


def segment_ids_to_row_splits(
    segment_ids: Any, num_segments: Any = None, out_type: Any = None, name: Any = None
) -> HostTensor:
    """Where rows begin, of the row of each element."""
    ids = concrete(segment_ids, "tf.ragged.segment_ids_to_row_splits")
    count = 0 if num_segments is None else static_size(num_segments)
    return HostTensor.of(np.concatenate([[0], np.cumsum(np.bincount(ids, minlength=count))]))
