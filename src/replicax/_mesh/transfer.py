"""Arrays onto the devices: batches of the host, as `PerReplica` nests, and arrays of other devices.

With several workers each holds the pieces of its own replicas only. Pieces of equal shape are
placed by each for itself; for uneven ones all workers exchange rows, see `put_uneven`. Between
the devices of CPUs in one process nothing is copied: all of them read the same memory.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, Sharding, SingleDeviceSharding

from replicax._core.placement import aligned, own_copy, place_all, place_batch, place_rows
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


def move_all(values: Any, layout: Sharding) -> Any:
    """Put the arrays of a nest on the devices of a layout, whole on each.

    A device that has the whole of an array keeps it: the results may share their memory.
    """
    leaves, tree = jax.tree.flatten(values)
    leaves = [_one_of_its_copies(leaf, layout) for leaf in leaves]
    # Of typed random keys NumPy cannot see the memory: with them, all others would be copied.
    for is_key in (False, True):
        places = [
            i
            for i, leaf in enumerate(leaves)
            if leaf.sharding.device_set != layout.device_set and _is_key(leaf.dtype) == is_key
        ]
        if places:
            moved = _moved([leaves[i] for i in places], layout)
            for i, value in zip(places, moved, strict=True):
                leaves[i] = value
    return tree.unflatten(leaves)


def _one_of_its_copies(array: Any, layout: Sharding) -> Any:
    """Of an array that several devices hold, the copy to start from: if it can be, that at home."""
    sharding = array.sharding
    several = isinstance(sharding, NamedSharding) and len(sharding.device_set) > 1
    if not several or not sharding.is_fully_replicated or sharding.device_set == layout.device_set:
        return array
    copy = array.addressable_data(_best_copy(sharding, layout))
    if copy.sharding.device_set == layout.device_set:
        return jax.make_array_from_single_device_arrays(array.shape, layout, [copy])
    return copy


@functools.lru_cache(maxsize=64)
def _best_copy(sharding: NamedSharding, layout: Sharding) -> int:
    devices = list(np.array(sharding.mesh.devices).flat)
    return next((i for i, device in enumerate(devices) if device in layout.device_set), 0)


@functools.cache
def _is_key(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jax.dtypes.extended)


def _moved(arrays: Sequence[Any], layout: Sharding) -> Sequence[Any]:
    """Arrays on devices that do not have them."""
    sources = {device for array in arrays for device in array.sharding.device_set}
    if not isinstance(layout, NamedSharding) or len(sources) > 1:
        return place_all(arrays, layout)
    (source,) = sources
    devices = list(np.array(layout.mesh.devices).flat)
    on_cpu = all(device.platform == "cpu" for device in (source, *devices))
    if on_cpu and not _is_key(arrays[0].dtype):
        return [_shared(array, layout) for array in arrays]
    copies = [arrays if device == source else jax.device_put(arrays, device) for device in devices]
    make = jax.make_array_from_single_device_arrays
    each = zip(*copies, strict=True)
    return [make(array.shape, layout, parts) for array, parts in zip(arrays, each, strict=True)]


def _shared(array: Any, layout: Sharding) -> Any:
    """An array of a CPU, whose memory all devices of a layout read.

    NumPy sees it, too, then: no program will write to it, whatever is donated.
    """
    seen = np.asarray(array)
    return jax.make_array_from_callback(seen.shape, layout, lambda _: seen)
