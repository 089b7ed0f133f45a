"""Tensors packed into buffers, so that few large all-reduces stand for many small ones."""

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
# How a sum in packs is known in a traced program: by the name of the call, which ends with sizes.
_SUM = "sum_in_packs_of_"
# Arrays in a buffer whose size nobody has chosen: for devices that meet in memory, and for
# processes, where a buffer takes longer to travel. XLA:CPU compiles one of n arrays in n² time: a
# step with 1000 variables in 32 s, in buffers of 100 in 14 s; with 150 in 5 s, of 25 in 1.6 s.
_FEW, _MOST = 25, 100


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
    """The items in order, in groups that are no larger than `most`, but for single items."""
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
    """Inside a map over the replicas: the sums of arrays, which travel in buffers.

    In a traced program this is one call, so that others can see what it adds up. A buffer is full
    from `bytes_per_pack` bytes on, and its largest array has `largest` bytes; 0 for any number.
    """
    return _summing(bytes_per_pack, largest)(leaves)


def summing_in_packs(equation: Any) -> Callable[[list[Any]], list[Any]] | None:
    """What sums other arrays alike, if an operation is the call of `sum_in_packs`; else None."""
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
        most = 0 if bytes_per_pack else _FEW if largest else _MOST
        ours = iter(combine_packed(small, all_reduce, bytes_per_pack=bytes_per_pack, most=most))
        others = iter(all_reduce(large) if large else [])
        return [next(ours if fit else others) for fit in fits]

    summed.__name__ = f"{_SUM}{bytes_per_pack}_{largest}"
    return jax.jit(summed)


def packed(leaves: Sequence[Any]) -> Any:
    """Inside a compiled program: arrays of one type, one after the other in a buffer."""
    # Writing into a zero buffer: `concatenate` inside a step is 10–30 × slower on XLA:CPU.
    buffer = jnp.zeros(sum(leaf.size for leaf in leaves), leaves[0].dtype)
    offset = 0
    for leaf in leaves:
        buffer = lax.dynamic_update_slice(buffer, leaf.ravel(), (offset,))
        offset += leaf.size
    return buffer


def unpacked(buffer: Any, shapes: Sequence[Sequence[int]]) -> list[Any]:
    """Inside a compiled program: the arrays of these shapes that a buffer was packed from."""
    ends = list(itertools.accumulate(map(math.prod, shapes), initial=0))
    return [
        buffer[begin:end].reshape(shape)
        for begin, end, shape in zip(ends, ends[1:], shapes, strict=False)
    ]
