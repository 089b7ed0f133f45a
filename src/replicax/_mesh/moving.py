"""Many arrays from some devices to others: the small ones travel together.

A transfer has a price of its own, on CPUs some 100 µs for each array and device. Two more copies of
a small array, into a buffer and out of it, take less.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Sharding

from replicax._core.compiling import compiled
from replicax._core.packing import packed, unpacked
from replicax._core.placement import place_all

# Bytes. What is larger travels by itself.
SMALL = 1 << 18


def move_all(values: Any, layout: Sharding) -> Any:
    """Put the arrays of a nest on the devices of a layout.

    Args:
        values: Arrays, all on the same devices of this process.
        layout: Where they go.

    Returns:
        The nest.
    """
    leaves, tree = jax.tree.flatten(values)
    groups: dict[Any, list[int]] = {}
    for i, leaf in enumerate(leaves):
        fits = _is_number(leaf.dtype) and leaf.size * leaf.dtype.itemsize <= SMALL
        groups.setdefault(leaf.dtype if fits else None, []).append(i)
    for kind, places in groups.items():
        group = [leaves[i] for i in places]
        moved = place_all(group, layout) if kind is None else _together(group, layout)
        for i, value in zip(places, moved, strict=True):
            leaves[i] = value
    return tree.unflatten(leaves)


@functools.cache
def _is_number(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jnp.number)


def _together(arrays: Sequence[Any], layout: Sharding) -> Sequence[Any]:
    shapes = tuple(array.shape for array in arrays)
    return _taken_apart(shapes, layout)(jax.device_put(_put_together(arrays), layout))


_put_together = jax.jit(packed)


@functools.lru_cache(maxsize=64)
def _taken_apart(shapes: tuple[tuple[int, ...], ...], layout: Sharding) -> Any:
    return compiled(
        lambda buffer: unpacked(buffer, shapes), devices=layout.device_set, out_shardings=layout
    )
