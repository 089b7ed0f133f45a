"""Packs arrays into buffers: a few large all-reduces instead of many small ones."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import lax

from replicax._core.topology import AXIS

T = TypeVar("T")
# A sum in packs is a call with this name in a jaxpr; the name ends with its sizes.
_SUM = "sum_in_packs_of_"
# Arrays per buffer if no size is chosen: for devices of one process, and for several processes.
# XLA:CPU compiles a buffer of n arrays in n² time. A step with 1000 variables took 32 s, and 14 s
# in buffers of 100; a step with 150 variables took 5 s, and 1.6 s in buffers of 25.
_ARRAYS_IN_PROCESS = 25
_ARRAYS_BETWEEN_PROCESSES = 100


def group_by_size(sizes: Sequence[int | None], bytes_per_pack: int) -> list[list[int]]:
    """Divide tensors into packs, TensorFlow's way.

    A new pack is opened when the current one is larger than `bytes_per_pack`; 0, or a size that is
    not known, puts all in one pack. The result has the positions of the tensors of each pack.

    Example:
        >>> group_by_size([128, 32, 800, 4], 200)
        [[0, 1, 2], [3]]
    """
    if bytes_per_pack == 0 or any(size is None for size in sizes):
        return [list(range(len(sizes)))]
    packs: list[list[int]] = []
    filled = 0
    for position, size in enumerate(sizes):
        if not packs or filled > bytes_per_pack:
            packs.append([])
            filled = 0
        packs[-1].append(position)
        filled += size or 0
    return packs


def groups(items: Sequence[T], size: Callable[[T], int], most: int) -> Iterator[Sequence[T]]:
    """Group items in order; the size of a group of several items is at most `most`."""
    begin, total = 0, 0
    for end, item in enumerate(items):
        if end > begin and total + size(item) > most:
            yield items[begin:end]
            begin, total = end, 0
        total += size(item)
    yield items[begin:]


def combine_packed(
    leaves: list[Any],
    combine: Callable[[list[Any]], list[Any]],
    *,
    num_packs: int = 1,
    bytes_per_pack: int = 0,
    most: int = 0,
) -> list[Any]:
    """Combine arrays in buffers, those of one type together.

    There are `num_packs` buffers of about equal size, or each is full from `bytes_per_pack` bytes
    on; 0 for no such size. One has `most` arrays; 0 for any number.
    """
    results: list[Any] = [None] * len(leaves)
    for dtype in sorted({str(leaf.dtype) for leaf in leaves}):
        # Later gradients are ready first in back-propagation: pack from the back.
        chosen = [i for i in reversed(range(len(leaves))) if str(leaves[i].dtype) == dtype]
        sizes = [leaves[i].nbytes for i in chosen]
        equal = -(-sum(sizes) // num_packs) - 1 if num_packs > 1 else 0
        packs = group_by_size(sizes, bytes_per_pack or equal)
        if most:
            packs = [pack[i : i + most] for pack in packs for i in range(0, len(pack), most)]
        buffers = combine([packed([leaves[chosen[i]] for i in pack]) for pack in packs])
        for pack, buffer in zip(packs, buffers, strict=True):
            places = [chosen[position] for position in pack]
            parts = unpacked(buffer, [leaves[i].shape for i in places])
            for i, part in zip(places, parts, strict=True):
                results[i] = part
    return results


def sum_in_packs(leaves: list[Any], bytes_per_pack: int = 0, largest: int = 0) -> list[Any]:
    """Inside `shard_map`: all-reduce arrays over the replicas in buffers.

    In a jaxpr this is one call, which passes recognize. A buffer is full from `bytes_per_pack`
    bytes on, and its largest array has `largest` bytes; 0 for any number.
    """
    return _summing(bytes_per_pack, largest)(leaves)


def summing_in_packs(equation: Any) -> Callable[[list[Any]], list[Any]] | None:
    """The function that a call of `sum_in_packs` calls; None for other equations."""
    sizes = pack_sizes(equation)
    return _summing(*sizes) if sizes else None


def pack_sizes(equation: Any) -> tuple[int, int] | None:
    """`bytes_per_pack` and `largest` of a call of `sum_in_packs`; None for other equations."""
    name = str(equation.params.get("name", ""))
    if not name.startswith(_SUM):
        return None
    bytes_per_pack, largest = map(int, name.removeprefix(_SUM).split("_"))
    return bytes_per_pack, largest


@functools.lru_cache(maxsize=64)
def _summing(bytes_per_pack: int, largest: int) -> Callable[[list[Any]], list[Any]]:
    def all_reduce(packs: list[Any]) -> list[Any]:
        return list(lax.psum(packs, AXIS))

    def summed(leaves: list[Any]) -> list[Any]:
        fits = [not largest or leaf.nbytes <= largest for leaf in leaves]
        if sum(fits) == 1:  # alone in a buffer it would be copied for nothing
            fits = [False] * len(leaves)
        large = [leaf for leaf, fit in zip(leaves, fits, strict=True) if not fit]
        small = [leaf for leaf, fit in zip(leaves, fits, strict=True) if fit]
        most = 0 if bytes_per_pack else _ARRAYS_IN_PROCESS if largest else _ARRAYS_BETWEEN_PROCESSES
        ours = iter(combine_packed(small, all_reduce, bytes_per_pack=bytes_per_pack, most=most))
        others = iter(all_reduce(large) if large else [])
        return [next(ours if fit else others) for fit in fits]

    summed.__name__ = f"{_SUM}{bytes_per_pack}_{largest}"
    return jax.jit(summed)


def packed(leaves: Sequence[Any]) -> Any:
    """Inside a compiled program: copy arrays of one dtype into a buffer."""
    # Writing into a zero buffer: `concatenate` inside a step is 10–30 × slower on XLA:CPU.
    buffer = jnp.zeros(sum(leaf.size for leaf in leaves), leaves[0].dtype)
    offset = 0
    for leaf in leaves:
        buffer = lax.dynamic_update_slice(buffer, leaf.ravel(), (offset,))
        offset += leaf.size
    return buffer


def unpacked(buffer: Any, shapes: Sequence[Sequence[int]]) -> list[Any]:
    """Inside a compiled program: the arrays of these shapes in a buffer."""
    ends = list(itertools.accumulate(map(math.prod, shapes), initial=0))
    places = zip(ends, ends[1:], shapes, strict=False)
    return [buffer[begin:end].reshape(shape) for begin, end, shape in places]
