"""Compressed all-reduce of gradients, and the residuals of error feedback."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

import jax
import jax.numpy as jnp
import keras
import numpy as np

from replicax._core.digests import without_numbers
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
    """Sums the gradients of the replicas with a compression.

    The residual of a step differs per replica. A variable with a row per replica stores it: see
    `Residuals`.
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
        large = [gradient.astype(jnp.float32) for gradient in gradients]
        totals = combine_packed(
            large, lambda packs: [self._sum(optimizer, variables, packs[0], group)]
        )
        return [t.astype(g.dtype) for t, g in zip(totals, gradients, strict=True)]

    def _sum(self, optimizer: Any, variables: Sequence[Any], vector: Any, group: SyncGroup) -> Any:
        size = self._compression.left_over(vector.size, group.size)
        if not size:
            return self._compression.sum(vector, jnp.zeros(()), group.size)[0]
        variable = self._residual_of(optimizer, variables, size)
        left = _compat.read(variable)
        # In the trace that makes the variable, it has the rows of all replicas.
        total, left = self._compression.sum(vector, left if left.ndim == 1 else left[0], group.size)
        _compat.write(variable, left)
        return total

    def _residual_of(self, optimizer: Any, variables: Sequence[Any], size: int) -> Any:
        shape = (self._topology.num_replicas, size)

        def make(first: Callable[..., Any]) -> Any:
            left = keras.Variable(
                first, shape, "float32", trainable=False, name="left_over_of_gradients"
            )
            _compat.adopt(left, self._store, self._topology.split)
            _compat.mark_per_replica(left)
            return left

        # An optimizer that is not built will be built for these variables.
        known = _compat.trainable_variables(optimizer) if optimizer.built else variables
        return residuals_of(optimizer).of(variables, known, make)


@final
class Residuals:
    """The residuals of the gradients of one optimizer: zeros before its first step.

    Each set of variables that the optimizer is applied to has a residual. Checkpoints identify a
    set by the indices of its variables in the optimizer, and by their paths.
    """

    def __init__(self) -> None:
        # With the set of variables, so that no later object gets their ids.
        self._kept: dict[tuple[int, ...], tuple[str, Any, Sequence[Any]]] = {}
        self._waiting: dict[str, np.ndarray] = {}
        self._paths: list[str] = []

    def of(
        self,
        variables: Sequence[Any],
        known: Sequence[Any],
        make: Callable[[Callable[..., Any]], Any],
    ) -> Any:
        """The residual of a set of variables.

        `known` are all variables of the optimizer; `make` takes an initializer.
        """
        key = tuple(map(id, variables))
        if key not in self._kept:
            self._paths = [variable.path for variable in known]
            place_of = {id(variable): place for place, variable in enumerate(known)}
            # Keras reports a variable that the optimizer does not know.
            name = _name([place_of.get(one, -1) for one in key], self._paths)
            first = self._saved(name)
            left = make(lambda shape, dtype=None: _or_zeros(first, shape))
            self._kept[key] = name, left, variables
        return self._kept[key][1]

    @property
    def is_empty(self) -> bool:
        """Whether there are no residuals, neither of this run nor restored ones."""
        return not (self._kept or self._waiting)

    def values(self) -> dict[str, np.ndarray]:
        """The residuals of all replicas by set; with several workers all of them call it."""
        kept = {name: _whole(_compat.read(left)) for name, left, _ in self._kept.values()}
        return {**self._waiting, **kept}

    def restore(self, values: Mapping[str, np.ndarray]) -> None:
        """Continue from a result of `values`; with another number of replicas, from zeros."""
        self._waiting = dict(values)
        for name, left, _ in self._kept.values():
            left.assign(_or_zeros(self._saved(name), left.shape))

    def _saved(self, name: str) -> np.ndarray | None:
        here = self._paths
        self._waiting = {_as_here(one, here): value for one, value in self._waiting.items()}
        return self._waiting.pop(name, None)


residuals_of = PerInstance(Residuals).of


def _name(places: Sequence[int], paths: Sequence[str]) -> str:
    return json.dumps([places, paths])


def _as_here(name: str, here: Sequence[str]) -> str:
    """The name of a saved set here: by its paths if all exist, else by order, as `matched`."""
    places, there = json.loads(name)
    place_of = {path: place for place, path in enumerate(here)}
    if len(place_of) == len(here) and place_of.keys() >= set(there):
        return _name([place_of[there[place]] for place in places], here)
    alike = list(map(without_numbers, here)) == list(map(without_numbers, there))
    return _name(places, here) if alike else name


def _or_zeros(value: Any, shape: Sequence[int]) -> Any:
    fits = value is not None and value.shape == tuple(shape)
    return jnp.asarray(value) if fits else jnp.zeros(shape, "float32")


def _whole(value: Any) -> np.ndarray:
    if not value.is_fully_addressable:
        jax.block_until_ready(value)  # collectives of two programs must not overlap
        whole = jax.sharding.NamedSharding(value.sharding.mesh, jax.sharding.PartitionSpec())
        value = place(value, whole)
    return np.array(to_host(value))
