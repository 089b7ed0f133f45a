"""`tf.ragged`: rows of different lengths, one after the other, and where each begins.

One axis is ragged, the second; those behind it are alike in all rows. The lengths of the rows are
a part of the shape: code is compiled for them, as it is for any shape.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, final

import jax
import numpy as np
from jax.core import Tracer

from replicax._core.errors import UsageError
from replicax.data._host import HostTensor, TensorShape, Unchanging
from replicax.data._spec import ArraySpec, Composite, spec_of
from replicax.tf import _elementwise as elementwise
from replicax.tf._calls import array, concrete, static_shape, static_size
from replicax.tf._composite import CompositeTensor, elements, filling, put
from replicax.tf._sparse import SparseTensor, sparse

RAGGED_ADVICE = "Make an array of it with `to_tensor()`, which fills rows up."
Operator = Callable[[Any, Any], Any]


@final
@dataclass(frozen=True, repr=False, init=False)
class RaggedTensorSpec(ArraySpec):
    """The shape and type of a `tf.RaggedTensor`, or of a row of one.

    Example:
        >>> import replicax.tf as tf
        >>> tf.data.Dataset.from_tensor_slices(tf.ragged.constant([[1, 2], []])).element_spec
        RaggedTensorSpec(shape=(None,), dtype=int32)
    """

    ragged_rank: int = 1
    row_splits_dtype: Any = np.int64

    def __init__(
        self,
        shape: Any = None,
        dtype: Any = np.float32,
        ragged_rank: int | None = None,
        row_splits_dtype: Any = np.int64,
        *,
        name: str | None = None,
    ) -> None:
        super().__init__(shape, dtype, name)
        axes = 2 if self.shape is None else len(self.shape)
        rank = axes - 1 if ragged_rank is None else ragged_rank
        object.__setattr__(self, "ragged_rank", rank)
        object.__setattr__(self, "row_splits_dtype", row_splits_dtype)

    @property
    def value_type(self) -> type:
        """The class of what it describes."""
        return RaggedTensor if self.ragged_rank else jax.Array

    def batched(self, rows: int | None) -> Self:
        """The spec of a batch of `rows` of these."""
        return replace(super().batched(rows), ragged_rank=self.ragged_rank + 1)

    def unbatched(self) -> Self:
        """The spec of a row."""
        return replace(super().unbatched(), ragged_rank=self.ragged_rank - 1)


@final
class RaggedRow(Composite, Unchanging):
    """A row of a ragged tensor as an element of a data set: an array that is batched as a row."""

    dense = RAGGED_ADVICE

    @property
    def spec(self) -> RaggedTensorSpec:
        """The spec of this tensor."""
        return RaggedTensorSpec(
            (None, *self.shape[1:]), spec_of(np.asarray(self)).dtype, ragged_rank=0
        )

    @classmethod
    def stacked(cls, rows: Sequence[Any]) -> RaggedTensor:
        """The ragged tensor of these rows."""
        values = HostTensor.of(np.concatenate([np.asarray(row) for row in rows]))
        return RaggedTensor.from_row_lengths(values, [len(row) for row in rows])


def _operators(function: Operator) -> tuple[Operator, Operator]:
    """The method of an operator, and the one of its right side."""
    return lambda self, other: function(self, other), lambda self, other: function(other, self)


@final
@jax.tree_util.register_pytree_node_class
class RaggedTensor(CompositeTensor):
    """Rows of different lengths.

    Functions of each element, sums and the like over axes, `tf.concat` and a few others take it;
    the rest take the array that `to_tensor` makes.

    **Differs from TF:** one axis is ragged, the second. In compiled code the lengths of the rows
    are known; for others it is compiled anew. Made by `tf.ragged.constant` and the methods
    `from_…`.

    Example:
        >>> import replicax.tf as tf
        >>> rows = tf.ragged.constant([[1, 2], [], [3]])
        >>> (rows + 1).to_list(), tf.reduce_sum(rows, axis=1).numpy().tolist()
        ([[2, 3], [], [4]], [3, 0, 3])
        >>> rows.to_tensor(-1).numpy().tolist()
        [[1, 2], [-1, -1], [3, -1]]
    """

    dense = RAGGED_ADVICE
    ragged_rank = 1
    uniform_row_length = None

    def __init__(self, values: Any, row_splits: np.ndarray) -> None:
        super().__init__(values, values.ndim)
        self._splits = row_splits

    @classmethod
    def from_row_splits(
        cls, values: Any, row_splits: Any, name: str | None = None, validate: bool = True
    ) -> RaggedTensor:
        """Rows that begin at these places; the last one is the number of values.

        Raises:
            UsageError: If the places do not ascend from 0 to the number of values.
        """
        held = elements(values)
        splits = concrete(row_splits, "tf.RaggedTensor.from_row_splits").astype(np.int64)
        ascend = splits.ndim == 1 and splits.size and not splits[0] and np.all(np.diff(splits) >= 0)
        if not held.ndim or not ascend or splits[-1] != held.shape[0]:
            raise UsageError(
                f"Row splits {splits.tolist()} do not fit values of shape {tuple(held.shape)}. "
                "They must begin with 0, never decrease, and end with the number of values."
            )
        return cls(held, splits)

    @classmethod
    def from_row_lengths(
        cls, values: Any, row_lengths: Any, name: str | None = None, validate: bool = True
    ) -> RaggedTensor:
        """Rows of these lengths.

        Raises:
            UsageError: If their sum is not the number of values.
        """
        lengths = concrete(row_lengths, "tf.RaggedTensor.from_row_lengths").astype(np.int64)
        return cls.from_row_splits(values, np.concatenate([[0], np.cumsum(lengths)]))

    @classmethod
    def from_value_rowids(
        cls,
        values: Any,
        value_rowids: Any,
        nrows: Any = None,
        name: str | None = None,
        validate: bool = True,
    ) -> RaggedTensor:
        """Rows of the values with the same number of a row; the numbers ascend.

        Raises:
            UsageError: If they do not, or are not below `nrows`.
        """
        ids = concrete(value_rowids, "tf.RaggedTensor.from_value_rowids").astype(np.int64)
        count = static_size(nrows) if nrows is not None else int(ids[-1]) + 1 if ids.size else 0
        if ids.size and (ids[0] < 0 or np.any(np.diff(ids) < 0) or ids[-1] >= count):
            raise UsageError(
                f"`value_rowids` must ascend from 0 to less than {count}, got {ids.tolist()}. "
                "Sort the values by row, or raise `nrows`."
            )
        return cls.from_row_lengths(values, np.bincount(ids, minlength=count))

    @classmethod
    def from_tensor(
        cls,
        tensor: Any,
        lengths: Any = None,
        padding: Any = None,
        ragged_rank: int = 1,
        name: str | None = None,
        row_splits_dtype: Any = None,
    ) -> RaggedTensor:
        """The rows of an array; of these lengths, or without the padding at their ends.

        Raises:
            UsageError: If both lengths and padding are given, or another axis is to be ragged.
        """
        whole = elements(tensor)
        if (lengths is not None and padding is not None) or ragged_rank != 1 or whole.ndim < 2:
            raise UsageError(
                f"Cannot make a ragged tensor of an array with {whole.ndim} axes, "
                f"lengths={lengths}, padding={padding}, ragged_rank={ragged_rank}. Pass a matrix, "
                "`lengths` or `padding`, and a `ragged_rank` of 1."
            )
        width = whole.shape[1]
        if padding is not None:
            kept = concrete(whole, "tf.RaggedTensor.from_tensor") != filling(whole, padding)
            kept = kept.reshape(*kept.shape[:2], -1).any(axis=-1)
            lengths = np.where(kept.any(1), width - np.argmax(kept[:, ::-1], axis=1), 0)
        elif lengths is None:
            lengths = np.full(whole.shape[0], width)
        counts = np.clip(concrete(lengths, "tf.RaggedTensor.from_tensor"), 0, width)
        return cls.from_row_lengths(whole[np.arange(width) < counts[:, None]], counts)

    @classmethod
    def from_sparse(
        cls, st_input: Any, name: str | None = None, row_splits_dtype: Any = None
    ) -> RaggedTensor:
        """The rows of a sparse matrix whose elements stand at the beginning of their rows.

        Raises:
            UsageError: If it is no such matrix.
        """
        tensor = sparse(st_input, "tf.RaggedTensor.from_sparse")
        where = concrete(tensor.indices, "tf.RaggedTensor.from_sparse")
        if where.shape[1] == 2:
            found = cls.from_value_rowids(tensor.values, where[:, 0], tensor.shape[0])
            if np.array_equal(found._columns(), where[:, 1]):
                return found
        raise UsageError(
            f"Cannot make a ragged tensor of {tensor}: its rows have gaps, or are out of order. "
            "Use `tf.sparse.to_dense`, or `tf.sparse.reorder` first."
        )

    @property
    def values(self) -> Any:
        """The elements of all rows, one after the other."""
        values = super().values
        if getattr(values, "shape", None) and values.shape[0] != self._splits[-1]:
            raise self.refused("cut into rows")
        return values

    flat_values = values

    @property
    def row_splits(self) -> HostTensor:
        """Where each row begins, and the number of elements."""
        return HostTensor.of(self._splits)

    @property
    def nested_row_splits(self) -> tuple[HostTensor]:
        """`row_splits` of each ragged axis; there is one."""
        return (self.row_splits,)

    @property
    def shape(self) -> TensorShape:
        """The shape of the whole, with None for the ragged axis."""
        return TensorShape((len(self._splits) - 1, None, *self.values.shape[1:]))

    @property
    def spec(self) -> RaggedTensorSpec:
        """The spec of this tensor."""
        return RaggedTensorSpec(self.shape, spec_of(self.values).dtype, ragged_rank=1)

    def nrows(self, out_type: Any = None, name: str | None = None) -> HostTensor:
        """The number of rows."""
        return HostTensor.of(np.int64(len(self._splits) - 1))

    def row_lengths(self, axis: Any = 1, name: str | None = None) -> HostTensor:
        """How many elements each row has."""
        return HostTensor.of(np.diff(self._splits))

    def row_starts(self, name: str | None = None) -> HostTensor:
        """Where each row begins."""
        return HostTensor.of(self._splits[:-1])

    def row_limits(self, name: str | None = None) -> HostTensor:
        """Where each row ends."""
        return HostTensor.of(self._splits[1:])

    def value_rowids(self, name: str | None = None) -> HostTensor:
        """The row of each element."""
        return HostTensor.of(np.repeat(np.arange(len(self._splits) - 1), np.diff(self._splits)))

    def _columns(self) -> np.ndarray:
        """The place of each element in its row."""
        starts = np.repeat(self._splits[:-1], np.diff(self._splits))
        return np.arange(self._splits[-1]) - starts

    def bounding_shape(self, axis: Any = None, name: Any = None, out_type: Any = None) -> Any:
        """The shape of the smallest array that has room for all rows, or its size of an axis."""
        longest = np.diff(self._splits).max(initial=0)
        shape = np.array([len(self._splits) - 1, longest, *self.values.shape[1:]], np.int64)
        return HostTensor.of(shape if axis is None else shape[np.asarray(axis)])

    def with_values(self, new_values: Any) -> RaggedTensor:
        """Other elements in rows of these lengths."""
        return RaggedTensor.from_row_splits(new_values, self._splits)

    with_flat_values = with_values

    def to_tensor(self, default_value: Any = None, name: Any = None, shape: Any = None) -> Any:
        """An array of the rows, filled up, or cut off at a shape."""
        xp, values = array(self.values)
        bounds = [int(size) for size in self.bounding_shape()]
        wanted = [None] * len(bounds) if shape is None else static_shape(shape)
        target = [b if w in (None, -1) else int(w) for b, w in zip(bounds, wanted, strict=True)]
        rows, columns = self.value_rowids().view(np.ndarray), self._columns()
        inside = (rows < target[0]) & (columns < target[1])
        whole = xp.full(target, filling(values, default_value), values.dtype)
        return put(whole, (rows[inside], columns[inside]), values[np.flatnonzero(inside)])

    def to_sparse(self, name: str | None = None) -> SparseTensor:
        """The elements and their places, of rows of single elements."""
        where = np.column_stack([self.value_rowids(), self._columns()])
        return SparseTensor(where, self.values, self.bounding_shape())

    def to_list(self) -> list[Any]:
        """The rows as Python's lists; texts as bytes."""
        return [np.asarray(HostTensor.of(row).numpy()).tolist() for row in self]

    def numpy(self) -> np.ndarray:
        """An array of the rows, each an array; one array of all, if they are alike."""
        rows = [np.asarray(HostTensor.of(row).numpy()) for row in self]
        if len({len(row) for row in rows}) == 1:
            return np.stack(rows)
        found = np.empty(len(rows), object)
        found[:] = rows
        return found

    def take_rows(self, numbers: Any) -> RaggedTensor:
        """The rows with these numbers."""
        return self._taken([np.arange(*self._splits[row : row + 2]) for row in numbers])

    def unstacked(self) -> list[RaggedRow]:
        """Its rows, as elements of a data set."""
        values = np.asarray(self.values)
        ends = zip(self._splits[:-1], self._splits[1:], strict=True)
        return [values[start:end].view(RaggedRow) for start, end in ends]

    @classmethod
    def joined(cls, batches: Sequence[Any]) -> RaggedTensor:
        """One of the rows of these."""
        values = HostTensor.of(np.concatenate([np.asarray(batch.values) for batch in batches]))
        lengths = [batch.row_lengths() for batch in batches]
        return cls.from_row_lengths(values, np.concatenate(lengths))

    def _taken(self, rows: Sequence[np.ndarray]) -> RaggedTensor:
        """Rows of the elements at these places."""
        where = np.concatenate([np.zeros(0, np.int64), *rows])
        return RaggedTensor.from_row_lengths(self.values[where], [len(row) for row in rows])

    def take_in_rows(self, key: slice) -> RaggedTensor:
        """A part of each row."""
        return self._taken(
            [np.arange(*self._splits[n : n + 2])[key] for n in range(len(self._splits) - 1)]
        )

    def __getitem__(self, key: Any) -> Any:
        keys = list(key) if isinstance(key, tuple) else [key]
        for place in [n for n, one in enumerate(keys) if one is Ellipsis]:
            keys[place : place + 1] = [slice(None)] * (self._ndim + 2 - len(keys))
        first, *rest = keys
        if not isinstance(first, slice):
            row = self._row(_whole(first))
            found = self.values[self._splits[row] : self._splits[row + 1]]
            return found[tuple(rest)] if rest else found
        found = self.take_rows(np.arange(len(self._splits) - 1)[_plain(first)])
        if not rest:
            return found
        second, *inner = rest
        if not isinstance(second, slice):
            raise UsageError(
                f"Cannot index a ragged tensor with [:, {second}]: not all rows may have this "
                "element. Use a slice, such as [:, :1], or `to_tensor()`."
            )
        found = found.take_in_rows(_plain(second))
        return found.with_values(found.values[(slice(None), *inner)]) if inner else found

    def _row(self, index: int) -> int:
        count = len(self._splits) - 1
        if not -count <= index < count:
            raise IndexError(f"A ragged tensor of {count} rows has no row {index}.")
        return index % count

    def __iter__(self) -> Iterator[Any]:
        return (self[row] for row in range(len(self._splits) - 1))

    def call(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """The result of a function of ragged tensors."""
        from replicax.tf._ragged_functions import called

        return called(function, args, kwargs)

    __add__, __radd__ = _operators(elementwise.add)
    __sub__, __rsub__ = _operators(elementwise.subtract)
    __mul__, __rmul__ = _operators(elementwise.multiply)
    __truediv__, __rtruediv__ = _operators(elementwise.truediv)
    __floordiv__, __rfloordiv__ = _operators(elementwise.floordiv)
    __mod__, __rmod__ = _operators(elementwise.floormod)
    __pow__, __rpow__ = _operators(elementwise.pow)
    __and__, __rand__ = _operators(elementwise.logical_and)
    __or__, __ror__ = _operators(elementwise.logical_or)
    __lt__, __gt__ = elementwise.less, elementwise.greater
    __le__, __ge__ = elementwise.less_equal, elementwise.greater_equal
    __eq__ = elementwise.equal
    __ne__ = elementwise.not_equal
    __hash__ = None  # pyright: ignore[reportAssignmentType]
    __neg__ = elementwise.negative
    __abs__ = elementwise.abs
    __invert__ = elementwise.logical_not

    def __repr__(self) -> str:
        known = hasattr(self._values, "numpy") and not isinstance(self._values, Tracer)
        return f"<tf.RaggedTensor {self.to_list() if known else self.shape}>"

    def tree_flatten(self) -> tuple[tuple[Any], Any]:
        """The elements, and the rows, which are known when code is compiled."""
        return (self._values,), (tuple(self._splits.tolist()), self._ndim)

    @classmethod
    def tree_unflatten(cls, aux: Any, children: Any) -> Self:
        """A tensor of what `tree_flatten` gave, or of what stands for it."""
        found, (splits, ndim) = cls.__new__(cls), aux
        found._splits = np.array(splits, np.int64)
        CompositeTensor.__init__(found, children[0], ndim)
        return found


def _whole(index: Any) -> int:
    """An index as a number."""
    if np.ndim(index) or index is None or isinstance(index, bool | np.bool_):
        raise UsageError(
            f"Cannot choose rows of a ragged tensor by {index!r}. Use a number or a slice, "
            "`tf.gather` for several rows, `tf.ragged.boolean_mask` for a mask."
        )
    return static_size(index).__index__()


def _plain(key: slice) -> slice:
    ends = (key.start, key.stop, key.step)
    return slice(*(None if end is None else _whole(end) for end in ends))
