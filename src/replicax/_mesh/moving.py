"""Many arrays from some devices to others: what is there already stays.

Between the devices of CPUs in one process nothing is copied: all of them read the same memory.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, Sharding

from replicax._core.placement import place_all


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
