"""Sparse tensors: of which only some elements are held, and their places.

The shape is known when code is compiled. Functions of them are in `_sparse_functions.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Self, final

import jax
import numpy as np
from jax.core import Tracer

from replicax._core.errors import UsageError
from replicax.data._host import HostTensor, TensorShape
from replicax.data._spec import ArraySpec, spec_of
from replicax.tf._calls import array, static_shape
from replicax.tf._composite import CompositeTensor, elements, places


@final
@dataclass(frozen=True, repr=False)
class SparseTensorSpec(ArraySpec):
    """The shape and type of a `tf.SparseTensor`.

    Example:
        >>> import replicax.tf as tf
        >>> tensor = tf.sparse.from_dense([[0, 1], [2, 0]])
        >>> tf.data.Dataset.from_tensor_slices(tensor).batch(2).element_spec
        SparseTensorSpec(shape=(None, 2), dtype=int32)
    """

    @property
    def value_type(self) -> type:
        """The class of what it describes."""
        return SparseTensor


# Functions of each element that give 0 for 0, so that what is not held stays 0.
_OF_ELEMENTS = {"abs", "cast", "erf", "identity", "negative", "sign", "sqrt", "square", "tanh"}


@final
@jax.tree_util.register_pytree_node_class
class SparseTensor(CompositeTensor):
    """A tensor of zeros but for some elements, held with their places.

    **Differs from TF:** places outside of the shape are refused at once.

    Raises:
        UsageError: If they do not fit together.

    Example:
        >>> import replicax.tf as tf
        >>> tensor = tf.SparseTensor(indices=[[0, 1], [1, 0]], values=[7, 8], dense_shape=[2, 3])
        >>> tf.sparse.to_dense(tensor).numpy().tolist()
        [[0, 7, 0], [8, 0, 0]]
    """

    dense = "Make an array of it with `tf.sparse.to_dense`."

    def __init__(self, indices: Any, values: Any, dense_shape: Any) -> None:
        super().__init__(elements(values), 1)
        self._shape, where = static_shape(dense_shape), places(indices)
        self._indices = where.reshape(-1, len(self._shape)) if not where.size else where
        fits = self._indices.shape == (self._values.size, len(self._shape))
        if self._values.ndim != 1 or not fits:
            raise UsageError(
                f"Cannot make a SparseTensor of indices of shape {tuple(where.shape)}, values of "
                f"shape {tuple(self._values.shape)} and dense_shape {self._shape}. Pass a vector "
                "of values, and a row of indices for each, with a number for each axis."
            )
        if not isinstance(where, Tracer) and np.any((where < 0) | (where >= self._shape)):
            raise UsageError(
                f"Indices up to {self._indices.max(0).tolist()} are outside of dense_shape "
                f"{list(self._shape)}. Correct one of them."
            )

    @property
    def indices(self) -> Any:
        """The place of each element, a matrix with a row for each."""
        if getattr(self._indices, "ndim", 2) != 2:
            raise self.refused("cut into rows")
        return self._indices

    @property
    def dense_shape(self) -> HostTensor:
        """The shape of the whole, as an array."""
        return HostTensor.of(np.asarray(self._shape, np.int64))

    @property
    def shape(self) -> TensorShape:
        """The shape of the whole."""
        return TensorShape(self._shape)

    @property
    def spec(self) -> SparseTensorSpec:
        """The spec of this tensor."""
        return SparseTensorSpec(self.shape, spec_of(self.values).dtype)

    def with_values(self, new_values: Any) -> SparseTensor:
        """Other elements at the same places."""
        return SparseTensor(self.indices, new_values, self._shape)

    def take_rows(self, numbers: Any) -> SparseTensor:
        """The rows with these numbers."""
        where = np.asarray(self.indices)
        order = np.argsort(where[:, 0], kind="stable")
        starts, ends = (
            np.searchsorted(where[order, 0], np.asarray(numbers, np.int64), side)
            for side in ("left", "right")
        )
        taken = np.concatenate(
            [np.zeros(0, np.int64), *(order[a:b] for a, b in zip(starts, ends, strict=True))]
        )
        rows = np.repeat(np.arange(len(starts)), ends - starts)
        return SparseTensor(
            np.column_stack([rows, where[taken, 1:]]),
            HostTensor.of(np.asarray(self.values)[taken]),
            (len(starts), *self._shape[1:]),
        )

    def unstacked(self) -> list[SparseTensor]:
        """Its rows.

        Raises:
            UsageError: If these are single elements.
        """
        if len(self._shape) < 2:
            raise self.refused("cut into rows of no axes")
        rows = (self.take_rows([number]) for number in range(self._shape[0]))
        return [SparseTensor(row.indices[:, 1:], row.values, self._shape[1:]) for row in rows]

    @classmethod
    def joined(cls, batches: Sequence[Any]) -> SparseTensor:
        """One of the rows of these; its shape has room for the largest."""
        starts = np.cumsum([0, *(batch.dense_shape[0] for batch in batches)])
        where = [np.array(batch.indices) for batch in batches]
        for indices, start in zip(where, starts, strict=False):
            indices[:, 0] += start
        shape = np.max([batch.dense_shape for batch in batches], axis=0)
        return cls(
            np.concatenate(where),
            HostTensor.of(np.concatenate([np.asarray(batch.values) for batch in batches])),
            (int(starts[-1]), *shape[1:].tolist()),
        )

    @classmethod
    def stacked(cls, rows: Sequence[Any]) -> SparseTensor:
        """A batch of sparse tensors; its shape has room for the largest."""
        shape = np.max([row.dense_shape for row in rows], axis=0)
        counts = [row.values.size for row in rows]
        where = np.concatenate([row.indices for row in rows])
        return cls(
            np.column_stack([np.repeat(np.arange(len(rows)), counts), where]),
            HostTensor.of(np.concatenate([np.asarray(row.values) for row in rows])),
            (len(rows), *shape.tolist()),
        )

    def call(self, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """The result of an elementwise function that gives 0 for 0."""
        name = function.__name__
        if name in _OF_ELEMENTS and args and args[0] is self:
            return self.with_values(function(self.values, *args[1:], **kwargs))
        return super().call(function, args, kwargs)

    def __mul__(self, other: Any) -> SparseTensor:
        return self.with_values(self.values * self._at_places(other))

    def __truediv__(self, other: Any) -> SparseTensor:
        return self.with_values(self.values / self._at_places(other))

    def _at_places(self, other: Any) -> Any:
        xp, whole = array(other)
        if not whole.ndim:
            return other
        return xp.broadcast_to(whole, self._shape)[tuple(xp.asarray(self.indices).T)]

    def __repr__(self) -> str:
        parts = self._indices, self._values, self._shape
        shown = (part if isinstance(part, Tracer) else np.asarray(part).tolist() for part in parts)
        return "SparseTensor(indices={}, values={}, dense_shape={})".format(*shown)

    def tree_flatten(self) -> tuple[tuple[Any, Any], Any]:
        """The arrays, and the shape, which is known when code is compiled."""
        return (self._indices, self._values), self._shape

    @classmethod
    def tree_unflatten(cls, aux: Any, children: Any) -> Self:
        """A tensor of what `tree_flatten` gave, or of what stands for it."""
        found = cls.__new__(cls)
        found._shape, (found._indices, values) = aux, children
        CompositeTensor.__init__(found, values, 1)
        return found


def sparse(value: Any, where: str) -> SparseTensor:
    """The value, which must be a sparse tensor."""
    if isinstance(value, SparseTensor):
        return value
    raise UsageError(
        f"`{where}` needs a SparseTensor, got {type(value).__name__}. Make one with "
        "`tf.sparse.from_dense`."
    )
