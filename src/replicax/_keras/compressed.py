"""Gradients that are compressed on their way, and where what is left over of them is kept."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, final

import jax.numpy as jnp
import keras

from replicax._core.packing import combine_packed
from replicax._keras import _compat

if TYPE_CHECKING:
    from replicax._core.compression import Compression
    from replicax._core.reduce import SyncGroup
    from replicax._core.topology import Topology


@final
class CompressedSum:
    """How the gradients of the replicas become those that an optimizer applies.

    What is left over of a step differs per replica. It is kept in a variable beside the
    optimizer, with a row for each; it is not saved, and begins with zeros. There is one for each
    set of variables that the optimizer is applied to: what is left over of some is not of others.

    Args:
        compression: How they are compressed.
        store: Owns the variables of what is left over.
        topology: The replicas.
    """

    def __init__(self, compression: Compression, store: Any, topology: Topology) -> None:
        self._compression = compression
        self._store, self._topology = store, topology
        self._left: weakref.WeakKeyDictionary[Any, dict[Any, Any]] = weakref.WeakKeyDictionary()

    def __call__(
        self,
        optimizer: Any,
        variables: Sequence[Any],
        gradients: Sequence[Any],
        group: SyncGroup,
    ) -> list[Any]:
        """The sums of an optimizer's gradients over the replicas, inside `run`."""
        large = [gradient.astype(jnp.float32) for gradient in gradients]
        totals = combine_packed(
            large, lambda packs: [self._sum(optimizer, variables, packs[0], group)]
        )
        return [t.astype(g.dtype) for t, g in zip(totals, gradients, strict=True)]

    def _sum(self, optimizer: Any, variables: Sequence[Any], vector: Any, group: SyncGroup) -> Any:
        size = self._compression.left_over(vector.size, group.size)
        if not size:
            return self._compression.sum(vector, jnp.zeros(()), group.size)[0]
        variable = self._left_by(optimizer, variables, size)
        left = _compat.read(variable)
        # While it is being made a trace sees the rows of all replicas.
        total, left = self._compression.sum(vector, left if left.ndim == 1 else left[0], group.size)
        _compat.write(variable, left)
        return total

    def _left_by(self, optimizer: Any, variables: Sequence[Any], size: int) -> Any:
        kept, key = self._left.setdefault(optimizer, {}), tuple(map(id, variables))
        if key not in kept:
            shape = (self._topology.num_replicas, size)
            left = keras.Variable(
                "zeros", shape, "float32", trainable=False, name="left_over_of_gradients"
            )
            _compat.adopt(left, self._store, self._topology.split)
            _compat.note_rows_of_replicas(left)
            kept[key] = left, variables  # which stay, so that no other gets their ids
        return kept[key][0]
