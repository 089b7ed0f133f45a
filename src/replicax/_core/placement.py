"""Places values on devices of one or several processes; the `Store` protocol of variables.

`jax.device_put` onto devices of several processes compares the values by a collective. Here every
process places the shards of its own devices without waiting; `channel.py` and
`_program/agreement.py` compare values. CPU devices of one process share memory, so nothing is
copied between them.
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
    """Place a value that every process holds completely on the devices of a layout."""
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


def copy_array(value: jax.Array) -> Any:
    """Copy an array on its devices, without compiling anything."""
    if value.is_fully_addressable:
        return jax.device_put(value, value.sharding, may_alias=False)
    parts = [copy_array(shard.data) for shard in value.addressable_shards]
    return jax.make_array_from_single_device_arrays(value.shape, value.sharding, parts)


def gather_rows(rows: np.ndarray, counts: Sequence[int], split: Sharding, out: Sharding) -> Any:
    """Make a global array from different numbers of rows per process; all of them call it.

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
    """Make a global array of `total` rows from equal numbers of rows per process, in order.

    The devices may keep the memory of `rows`. The layout shards axis 0.
    """
    shape = (total, *rows.shape[1:])
    begins = _begins(layout, shape)

    def block(index: Any) -> np.ndarray:
        begin, end, _ = index[0].indices(total)
        return rows[begins[begin] : begins[begin] + end - begin]

    # 4 × faster than `make_array_from_process_local_data`, which computes the indices each time.
    return jax.make_array_from_callback(shape, layout, block)


@functools.lru_cache(maxsize=256)
def _begins(layout: Sharding, shape: tuple[int, ...]) -> dict[int, int]:
    """The starts of this process' blocks: from global row numbers to local ones."""
    indices = layout.addressable_devices_indices_map(shape).values()
    blocks = sorted({index[0].indices(shape[0])[:2] for index in indices if index is not None})
    begins, own = {}, 0
    for begin, end in blocks:
        begins[begin] = own
        own += end - begin
    return begins


def to_host(value: Any) -> np.ndarray:
    """An array that this process holds completely, as a NumPy array."""
    return np.asarray(value.addressable_data(0) if spans_processes(value) else value)


def uncommitted(value: Any) -> Any:
    """The array of one device, uncommitted, without a copy.

    JAX refuses to combine arrays committed to different devices, and moves uncommitted ones.
    """
    if not isinstance(value, jax.Array) or isinstance(value, Tracer):
        return value
    if _is_key(value.dtype) or not value.committed or len(value.sharding.device_set) > 1:
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

    `owned` NumPy arrays are not copied, and must not change afterwards; of other arrays each device
    gets a copy of its shard. `jax.device_put` would take two to three times as long.
    """
    if not all(isinstance(leaf, np.ndarray) for leaf in leaves):
        return place_all([leaf if owned else own_copy(leaf) for leaf in leaves], list(layouts))

    def put(leaf: np.ndarray, layout: Sharding) -> jax.Array:
        part = leaf.__getitem__ if owned else lambda index: own_copy(leaf[index])
        return jax.make_array_from_callback(leaf.shape, layout, part)

    return list(map(put, leaves, layouts))


def move_all(values: Any, layout: Sharding) -> Any:
    """Replicate the arrays of a nest on the devices of a layout.

    The results may share memory with the arrays.
    """
    if is_traced():  # tapes and gradients see only operations
        return jax.device_put(values, layout)
    leaves = [_one_of_its_copies(leaf, layout) for leaf in jax.tree.leaves(values)]
    # NumPy cannot view typed random keys; with one of them all arrays would be copied.
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
    """The values with the `chosen` ones moved by one call of `move`."""
    moved = iter(move([v for v, one in zip(values, chosen, strict=False) if one]))
    return [next(moved) if one else v for v, one in zip(values, chosen, strict=False)]


def _one_of_its_copies(array: Any, layout: Sharding) -> Any:
    """The copy of a replicated array to move: one on a device of the layout, if possible."""
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
    """Arrays on devices that do not hold them yet."""
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
    """An array in the memory of a CPU array, which all devices of a layout read.

    NumPy holds the memory too, so JAX does not donate it.
    """
    seen = np.asarray(array)
    return jax.make_array_from_callback(seen.shape, layout, lambda _: seen)


def aligned(shape: Sequence[int], dtype: Any) -> np.ndarray:
    """An uninitialized array, whose memory CPU devices use without a copy."""
    kind = np.dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size].view(kind).reshape(shape)


def own_copy(leaf: Any) -> Any:
    """A copy of a NumPy array, which CPU devices may keep; any other value as it is.

    `device_put` keeps an aligned buffer on CPUs: a loader that reuses its buffer would change a
    batch that is already "on the device".
    """
    if not isinstance(leaf, np.ndarray):
        return leaf
    copy = aligned(leaf.shape, leaf.dtype)
    np.copyto(copy, leaf)
    return copy


def spans_processes(value: Any) -> bool:
    """Whether an array is on devices of several processes."""
    is_concrete = isinstance(value, jax.Array) and not isinstance(value, Tracer)
    return is_concrete and not value.is_fully_addressable


def is_divided(value: Any) -> bool:
    """Whether a value is an array that no process holds completely."""
    return spans_processes(value) and not value.is_fully_replicated


def is_here(value: Any, replica: int) -> bool:
    """Whether this process drives a replica of the mesh that an array lives on."""
    if not spans_processes(value):
        return True
    devices = value.sharding.mesh.devices
    return devices.reshape(len(devices), -1)[replica, 0].process_index == jax.process_index()


@dataclass(frozen=True)
class VariableSpec:
    """Describes a variable to a store when Keras creates it."""

    path: str  # in its model, such as `dense/kernel`
    shape: tuple[int, ...]
    dtype: str  # as Keras spells it
    aggregation: str = "none"
    synchronization: str = "auto"
    is_slot: bool = False  # an optimizer keeps it: momentum, an average, accumulated gradients
    parameter: str = ""  # the path of the variable that the optimizer keeps it for


class Store(Protocol):
    """Where variables live; `DeviceStore` in `_mesh` is the store of local devices."""

    @property
    def device_names(self) -> tuple[str, ...]:
        """The devices, or tasks of a cluster, that hold the variables."""
        ...

    @property
    def is_resident(self) -> bool:
        """Whether variables are on the devices of the replicas."""
        ...

    @property
    def home(self) -> Sharding | None:
        """The device that stores all variables, if replicas compute on others."""
        ...

    def layout(self, spec: VariableSpec) -> Sharding | None:
        """Where a new variable is placed; asked once, when Keras creates it."""
        ...

    def claim(self, variable: Any) -> None:
        """Take a variable for which there is no layout; asked once, like `layout`."""
        ...
