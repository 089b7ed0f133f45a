"""Values onto devices, also onto devices that other processes drive as well.

`jax.device_put` onto devices of several processes compares the values of all processes with a
collective operation. Here every process hands over what belongs to its own devices, and nobody
waits for anybody. That the values agree is seen to elsewhere: `channel.py` and
`_program/agreement.py`. Between the devices of CPUs in one process nothing is copied: all of them
read the same memory.

Where variables live is asked of a `Store`: `DeviceStore` in `_mesh` is the one for local devices.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import NamedSharding, Sharding

from replicax._core.tracing import is_traced

# Bytes. A CPU device takes over memory that begins at a multiple of this, and copies other memory.
_ALIGNMENT = 64


def place(value: Any, layout: Sharding) -> Any:
    """Put a whole value, of which every process holds all, on the devices of a layout."""
    if layout.is_fully_addressable or isinstance(value, Tracer):
        return jax.device_put(value, layout)
    if isinstance(value, jax.Array):
        if value.sharding.is_equivalent_to(layout, value.ndim):
            return value
        if is_divided(value):
            return jax.jit(lambda array: array, out_shardings=layout)(value)
        if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            data = place(jax.random.key_data(value), layout)
            return jax.random.wrap_key_data(data, impl=jax.random.key_impl(value))
    host = to_host(value)
    return jax.make_array_from_callback(host.shape, layout, lambda index: host[index])


def copied(value: jax.Array) -> Any:
    """A copy of an array in memory of its own, where it is; JAX compiles nothing for it."""
    if value.is_fully_addressable:
        return jax.device_put(value, value.sharding, may_alias=False)
    parts = [copied(shard.data) for shard in value.addressable_shards]
    return jax.make_array_from_single_device_arrays(value.shape, value.sharding, parts)


def gather_rows(rows: np.ndarray, counts: Sequence[int], split: Sharding, out: Sharding) -> Any:
    """Make an array of rows of which the processes hold different numbers; all of them call it.

    `split` divides axis 0 over the devices of all processes; `out` is the layout of all rows, in
    process order.
    """
    here = len(split.addressable_devices)
    block = -(-max(counts) // here) * here
    padded = np.zeros((block, *rows.shape[1:]), rows.dtype)
    padded[: len(rows)] = rows
    return _joined(tuple(counts), out)(place_rows(padded, split, block * len(counts)))


@functools.lru_cache(maxsize=64)
def _joined(counts: tuple[int, ...], out: Sharding) -> Any:
    def join(padded: Any) -> Any:
        block = padded.shape[0] // len(counts)
        parts = [padded[i * block : i * block + count] for i, count in enumerate(counts)]
        return jnp.concatenate(parts)

    return jax.jit(join, out_shardings=out)


def place_rows(rows: np.ndarray, layout: Sharding, total: int) -> Any:
    """Make an array of `total` rows of which every process holds as many, in order.

    The devices may keep the memory of these. The layout divides axis 0.
    """
    shape = (total, *rows.shape[1:])
    begins = _begins(layout, shape)

    def block(index: Any) -> np.ndarray:
        begin, end, _ = index[0].indices(total)
        return rows[begins[begin] : begins[begin] + end - begin]

    # In a quarter of the time of `make_array_from_process_local_data`, which asks where each time.
    return jax.make_array_from_callback(shape, layout, block)


@functools.lru_cache(maxsize=256)
def _begins(layout: Sharding, shape: tuple[int, ...]) -> dict[int, int]:
    """Where the blocks of this process begin: in all rows, and in its own."""
    indices = layout.addressable_devices_indices_map(shape).values()
    blocks = sorted({index[0].indices(shape[0])[:2] for index in indices if index is not None})
    begins, own = {}, 0
    for begin, end in blocks:
        begins[begin] = own
        own += end - begin
    return begins


def to_host(value: Any) -> np.ndarray:
    """The whole of an array that this process holds, as NumPy has it."""
    return np.asarray(value.addressable_data(0) if is_spread(value) else value)


def movable(value: Any) -> Any:
    """The array of a device as an uncommitted one, without a copy.

    JAX refuses to add arrays that are committed to different devices, and moves an uncommitted one.
    """
    if not isinstance(value, jax.Array) or isinstance(value, Tracer):
        return value
    is_key = jnp.issubdtype(value.dtype, jax.dtypes.extended)
    if is_key or not value.committed or len(value.sharding.device_set) > 1:
        return value
    make: Any = type(value)
    return make(value.aval, value.sharding, [value.addressable_data(0)], committed=False)


def place_all(values: Any, layouts: Any) -> Any:
    """`place` for each array of a nest; `layouts` is one for all, or a nest of them."""
    if all(layout.is_fully_addressable for layout in jax.tree.leaves(layouts)):
        return jax.device_put(values, layouts)
    return jax.tree.map(place, values, jax.tree.broadcast(layouts, values))


def place_batch(
    leaves: Sequence[Any], layouts: Sequence[Sharding], *, owned: bool = True
) -> list[Any]:
    """Put the leaves of a batch on the devices.

    Arrays of NumPy that are `owned` are not copied, and must not change afterwards; of others each
    device gets a copy of its part. `jax.device_put` does the same in two to three times as long.
    """
    if not all(isinstance(leaf, np.ndarray) for leaf in leaves):
        return place_all([leaf if owned else own_copy(leaf) for leaf in leaves], list(layouts))

    def put(leaf: np.ndarray, layout: Sharding) -> jax.Array:
        part = leaf.__getitem__ if owned else lambda index: own_copy(leaf[index])
        return jax.make_array_from_callback(leaf.shape, layout, part)

    return list(map(put, leaves, layouts))


def move_all(values: Any, layout: Sharding) -> Any:
    """Put the arrays of a nest on the devices of a layout, whole on each.

    A device that has the whole of an array keeps it: the results may share their memory.
    """
    if is_traced():  # a tape and a gradient hear of operations only
        return jax.device_put(values, layout)
    leaves = [_one_of_its_copies(leaf, layout) for leaf in jax.tree.leaves(values)]
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
    return jax.tree.unflatten(jax.tree.structure(values), leaves)


def move_some(move: Callable[..., Any], values: Sequence[Any], chosen: Sequence[bool]) -> list[Any]:
    """The same values, in which those that are `chosen` are moved, all together."""
    moved = iter(move([v for v, one in zip(values, chosen, strict=False) if one]))
    return [next(moved) if one else v for v, one in zip(values, chosen, strict=False)]


def _one_of_its_copies(array: Any, layout: Sharding) -> Any:
    """The copy to start from if several devices hold an array: the one at home, if there is one."""
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


def aligned(shape: Sequence[int], dtype: Any) -> np.ndarray:
    """An array without values, whose memory the devices of a CPU take over as it is."""
    kind = np.dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size].view(kind).reshape(shape)


def own_copy(leaf: Any) -> Any:
    """A copy of an array of NumPy, which the devices of a CPU may keep; anything else as it is.

    `device_put` takes over an aligned buffer there: a loader that fills its own again would change
    a batch that is already "on the device".
    """
    if not isinstance(leaf, np.ndarray):
        return leaf
    copy = aligned(leaf.shape, leaf.dtype)
    np.copyto(copy, leaf)
    return copy


def is_spread(value: Any) -> bool:
    """Whether an array lives on devices of several processes."""
    concrete = isinstance(value, jax.Array) and not isinstance(value, Tracer)
    return concrete and not value.is_fully_addressable


def is_divided(value: Any) -> bool:
    """Whether a value is an array that no process has whole."""
    return is_spread(value) and not value.is_fully_replicated


def is_here(value: Any, replica: int) -> bool:
    """Whether this process drives a replica of the mesh that an array lives on."""
    if not is_spread(value):
        return True
    devices = value.sharding.mesh.devices
    return devices.reshape(len(devices), -1)[replica, 0].process_index == jax.process_index()


@dataclass(frozen=True)
class VariableSpec:
    """What a store is told about a variable when Keras creates it."""

    path: str  # in its model, such as `dense/kernel`
    shape: tuple[int, ...]
    dtype: str  # as Keras spells it
    aggregation: str = "none"
    synchronization: str = "auto"
    is_slot: bool = False  # an optimizer keeps it: momentum, an average, accumulated gradients
    parameter: str = ""  # the path of the variable that the optimizer keeps it for


class Store(Protocol):
    """Where variables live and how a write reaches them."""

    @property
    def device_names(self) -> tuple[str, ...]:
        """What holds the variables: devices, or tasks of a cluster."""
        ...

    @property
    def is_resident(self) -> bool:
        """Whether they are where the replicas compute."""
        ...

    @property
    def home(self) -> Sharding | None:
        """The device that has all variables, which it lends to replicas that compute on others."""
        ...

    def layout(self, spec: VariableSpec) -> Sharding | None:
        """Where a new variable is placed; asked once, when Keras creates it."""
        ...

    def claim(self, variable: Any) -> None:
        """Take a variable for which there is no layout; asked once, like `layout`."""
        ...
