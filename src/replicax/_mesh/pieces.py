"""Pieces of a batch in host memory, one per replica, put on the devices as `PerReplica` values.

With several workers each holds the pieces of its own replicas only. Pieces of equal shape are
placed by each for itself; for uneven ones all workers exchange rows, see `put_uneven`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from replicax._core.placement import aligned, own_copy, place_batch, place_rows
from replicax._core.values import PerReplica, refuse_text

if TYPE_CHECKING:
    from replicax._core.topology import Topology


def put_pieces(topology: Topology, pieces: Sequence[Any]) -> Any:
    """Place one nest of host arrays per replica of this process: a nest of `PerReplica`.

    With several processes, all pieces of one batch have one shape; else they may differ in their
    first axis. With one replica the arrays stay arrays.
    """
    leaves, tree = jax.tree.flatten(pieces[0])
    for leaf in leaves:
        refuse_text(leaf)
    if topology.num_replicas == 1:
        one = len(topology.devices) == 1
        home = SingleDeviceSharding(topology.devices[0]) if one else topology.replicated
        return tree.unflatten(place_batch(list(map(own_copy, leaves)), [home] * len(leaves)))
    columns = list(zip(leaves, *(tree.flatten_up_to(piece) for piece in pieces[1:]), strict=True))
    return tree.unflatten(_put_columns(topology, columns))


def _put_columns(topology: Topology, columns: Sequence[Sequence[Any]]) -> list[PerReplica]:
    """Place for each column the arrays of all replicas; those of one shape each by one call."""
    stacked = [_stacked(column) if _is_even(column) else None for column in columns]
    even = [array for array in stacked if array is not None]
    if topology.num_processes > 1:
        placed = iter([place_rows(a, topology.split, topology.num_replicas) for a in even])
    else:
        placed = iter(place_batch(even, [topology.split] * len(even)))
    return [
        # Uneven pieces are computed in lockstep, by every device: see uneven.py.
        PerReplica(parts=tuple(jax.device_put(list(map(own_copy, column)), topology.replicated)))
        if array is None
        else PerReplica(next(placed))
        for array, column in zip(stacked, columns, strict=True)
    ]


def _is_even(column: Sequence[Any]) -> bool:
    return len({np.shape(leaf) for leaf in column}) == 1


def put_uneven(topology: Topology, pieces: Sequence[Any], sizes: Sequence[int]) -> Any:
    """Place pieces of different sizes that several processes hold; all of them call it together.

    `sizes` are the rows of all replicas, over all processes. Every device holds the arrays of all
    replicas, because they are computed in lockstep: see uneven.py.
    """
    for leaf in jax.tree.leaves(pieces[0]):
        refuse_text(leaf)
    most, cut = max(sizes), _cut(tuple(sizes), topology.replicated)

    def one(*leaves: Any) -> PerReplica:
        padded = np.zeros((len(leaves), most, *np.shape(leaves[0])[1:]), np.result_type(*leaves))
        for row, leaf in zip(padded, leaves, strict=True):
            row[: len(leaf)] = leaf
        return PerReplica(parts=cut(place_rows(padded, topology.split, len(sizes))))

    return jax.tree.map(one, *pieces)


@functools.lru_cache(maxsize=64)
def _cut(sizes: tuple[int, ...], layout: Any) -> Any:
    def cut(stacked: Any) -> tuple[Any, ...]:
        return tuple(stacked[replica, :size] for replica, size in enumerate(sizes))

    return jax.jit(cut, out_shardings=layout)


def _stacked(leaves: Sequence[Any]) -> np.ndarray:
    """A copy of these arrays as one, which the devices of a CPU take over as it is."""
    arrays = [np.asarray(leaf) for leaf in leaves]
    out = aligned((len(arrays), *arrays[0].shape), np.result_type(*arrays))
    for place, array in enumerate(arrays):
        out[place] = array
    return out
