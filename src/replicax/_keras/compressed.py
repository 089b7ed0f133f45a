"""Gradients that are compressed on their way, and where what is left over of them is kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

import jax
import jax.numpy as jnp
import keras
import numpy as np

from replicax._core.packing import combine_packed
from replicax._core.placement import place, to_host
from replicax._keras import _compat
from replicax._keras.per_instance import PerInstance

if TYPE_CHECKING:
    from replicax._core.compression import Compression
    from replicax._core.reduce import SyncGroup
    from replicax._core.topology import Topology


@final
class CompressedSum:
    """How the gradients of the replicas become those that an optimizer applies.

    What is left over of a step differs per replica. It is kept in a variable beside the
    optimizer, with a row for each: see `LeftOver`.

    Args:
        compression: How they are compressed.
        store: Owns the variables of what is left over.
        topology: The replicas.
    """

    def __init__(self, compression: Compression, store: Any, topology: Topology) -> None:
        self._compression = compression
        self._store, self._topology = store, topology

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
        shape = (self._topology.num_replicas, size)

        def make(first: Callable[..., Any]) -> Any:
            left = keras.Variable(
                first, shape, "float32", trainable=False, name="left_over_of_gradients"
            )
            _compat.adopt(left, self._store, self._topology.split)
            _compat.note_rows_of_replicas(left)
            return left

        return left_over_by(optimizer).of(variables, make)


@final
class LeftOver:
    """What is left over of the gradients that one optimizer gets: zeros before its first step.

    There is a variable for each set of variables that the optimizer is applied to: what is left
    over of some is not of others. Checkpoints know it by the paths of the set.
    """

    def __init__(self) -> None:
        # Beside each the set that it is for, so that no other gets the same ids.
        self._kept: dict[tuple[int, ...], tuple[str, Any, Sequence[Any]]] = {}
        self._waiting: dict[str, np.ndarray] = {}

    def of(self, variables: Sequence[Any], make: Callable[[Callable[..., Any]], Any]) -> Any:
        """The variable of what is left over of a set of variables.

        Args:
            variables: The set.
            make: Makes it, from what gives its first value.
        """
        key = tuple(map(id, variables))
        if key not in self._kept:
            name = ";".join(variable.path for variable in variables)
            alike = sum(path.split("#")[0] == name for path, _, _ in self._kept.values())
            name += f"#{alike}" if alike else ""
            first = self._saved(name)
            left = make(lambda shape, dtype=None: _or_zeros(first, shape))
            self._kept[key] = name, left, variables
        return self._kept[key][1]

    @property
    def is_empty(self) -> bool:
        """Whether no step has left anything over."""
        return not self._kept

    def values(self) -> dict[str, np.ndarray]:
        """What there is, the rows of all replicas; with several workers all of them call it."""
        return {name: _whole(_compat.read(left)) for name, left, _ in self._kept.values()}

    def restore(self, values: Mapping[str, np.ndarray]) -> None:
        """Go on from what `values` gave; with another number of replicas, from zeros."""
        self._waiting = dict(values)
        for name, left, _ in self._kept.values():
            left.assign(_or_zeros(self._saved(name), left.shape))

    def _saved(self, name: str) -> np.ndarray | None:
        """The value of this name; else the first of one that Keras has counted differently."""
        alike = [one for one in self._waiting if _compat.uncounted(one) == _compat.uncounted(name)]
        return self._waiting.pop(name if name in alike else alike[0]) if alike else None


left_over_by = PerInstance(LeftOver).of


def _or_zeros(value: Any, shape: Sequence[int]) -> Any:
    fits = value is not None and value.shape == tuple(shape)
    return jnp.asarray(value) if fits else jnp.zeros(shape, "float32")


def _whole(value: Any) -> np.ndarray:
    if not value.is_fully_addressable:
        jax.block_until_ready(value)  # the step before, which communicates, too
        whole = jax.sharding.NamedSharding(value.sharding.mesh, jax.sharding.PartitionSpec())
        value = place(value, whole)
    return np.array(to_host(value))
