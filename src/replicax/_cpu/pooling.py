"""Pooling and its gradient on CPUs, as slices: XLA's operations go element by element.

The maximum, or the sum, over windows is the maximum or sum of as many slices as a window has
elements. The gradient of average pooling is the same, because JAX writes it as sums over windows.

In the gradient of max pooling the gradient of a window goes to its first largest element. `nan` has
no order: XLA walks along the window, and moves on unless the value so far is at least (at most, for
a minimum) the next one. This file does the same walk for all windows at once, and adds the
gradients of several windows in XLA's order, so that results are equal to the last bit.

Types of 16 bits are computed in `float32` and rounded once at the end. XLA rounds after each
operation, in loops without vectors; the gradient of 3 × 3 windows took 2.5 times as long.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from replicax._cpu import lowering

# Elements of a window. The program grows with them.
_LARGEST_WINDOW = 64
_SMALL_WINDOW = 4
_TYPES = ("bfloat16", "float16", "float32", "float64")

Place = tuple[int, ...]


def install() -> None:
    """Register the rules for pooling and its gradient in our programs on CPUs."""
    largest = lowering.in_32_bits(functools.partial(combine_slices, lax.max, -math.inf))
    total = lowering.in_32_bits(functools.partial(combine_slices, lax.add, 0.0))
    lowering.replace(lax.select_and_scatter_add_p, "pooling", covers, scatter_to_selected)
    lowering.replace(lax.reduce_window_max_p, "pooling", covers, largest)
    lowering.replace(lax.reduce_window_sum_p, "pooling", covers_sum, total)


def covers(
    *operands: Any,
    window_dimensions: Sequence[int],
    padding: Sequence[tuple[int, int]],
    base_dilation: Sequence[int] = (),
    **others: Any,
) -> bool:
    """Whether these windows are computed by slices."""
    del others
    usual = str(operands[0].dtype) in _TYPES and min(map(min, padding), default=0) >= 0
    dense = max(base_dilation, default=1) == 1
    return usual and dense and 1 < math.prod(window_dimensions) <= _LARGEST_WINDOW


def covers_sum(operand: Any, *, window_dimensions: Sequence[int], **others: Any) -> bool:
    """Whether sums over windows are computed by slices; XLA is faster for windows of 2 × 2."""
    covered = covers(operand, window_dimensions=window_dimensions, **others)
    return covered and math.prod(window_dimensions) > _SMALL_WINDOW


def combine_slices(
    combine: Callable[[Any, Any], Any],
    start: float,
    operand: Any,
    *,
    window_dimensions: Sequence[int],
    window_strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    window_dilation: Sequence[int],
    **others: Any,
) -> Any:
    """Combine the elements of each window to one.

    `start` is the neutral element, with which `operand` is padded. The other arguments are those
    of `lax.reduce_window`; `others` have no effect on windows that are covered.
    """
    del others
    padded = _padded(operand, start, padding)
    axes = zip(padded.shape, window_dimensions, window_strides, window_dilation, strict=True)
    counts = [(size - (width - 1) * gap - 1) // stride + 1 for size, width, stride, gap in axes]
    axes = zip(window_dimensions, window_dilation, strict=True)
    places = itertools.product(*(range(0, width * gap, gap) for width, gap in axes))
    views = (_view(padded, place, counts, window_strides) for place in places)
    return functools.reduce(combine, views)


@lowering.in_32_bits
def scatter_to_selected(
    source: Any,
    operand: Any,
    *,
    select_prim: Any,
    window_dimensions: Sequence[int],
    window_strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
) -> Any:
    """Add each window's value to the window's selected element.

    `select_prim` is `lax.ge_p` for the largest element, `lax.le_p` for the smallest. The other
    arguments are those of `lax.reduce_window`.
    """
    places = list(itertools.product(*map(range, window_dimensions)))
    padded = _padded(operand, -math.inf if select_prim is lax.ge_p else math.inf, padding)
    views = (_view(padded, place, source.shape, window_strides) for place in places)
    best, selected = next(views), jnp.zeros(source.shape, jnp.int8)
    for number, view in enumerate(views, 1):
        stays = select_prim.bind(best, view)
        best = jnp.where(stays, best, view)
        selected = jnp.where(stays, selected, jnp.int8(number))
    nothing = jnp.zeros((), source.dtype)
    given = {
        place: jnp.where(selected == number, source, nothing) for number, place in enumerate(places)
    }
    total = _interleaved(given, window_strides, padded.shape)
    return lax.slice(
        total,
        [low for low, _ in padding],
        [low + size for (low, _), size in zip(padding, operand.shape, strict=True)],
    )


def _padded(operand: Any, edge: float, padding: Sequence[tuple[int, int]]) -> Any:
    edges = [(low, high, 0) for low, high in padding]
    return lax.pad(operand, jnp.asarray(edge, operand.dtype), edges)


def _view(padded: Any, place: Place, windows: Sequence[int], strides: Sequence[int]) -> Any:
    """The element at the same place of each window."""
    axes = list(zip(place, windows, strides, strict=True))
    ends = [first + (count - 1) * stride + 1 for first, count, stride in axes]
    return lax.slice(padded, place, ends, strides)


def _interleaved(given: dict[Place, Any], strides: Sequence[int], shape: Sequence[int]) -> Any:
    """Sum the values given to each place of the windows into one array of the operand's shape.

    Places that are whole strides apart are the same elements in different windows. The last such
    place belongs to an element's first window, and XLA adds in the order of windows.
    """
    counts = [-(-size // stride) for size, stride in zip(shape, strides, strict=True)]
    sums: dict[Place, Any] = {}
    for place in reversed(given):
        shift = [first // stride for first, stride in zip(place, strides, strict=True)]
        axes = zip(shift, counts, given[place].shape, strict=True)
        edges = [(before, count - size - before, 0) for before, count, size in axes]
        moved = lax.pad(given[place], jnp.zeros((), given[place].dtype), edges)
        rest = tuple(first % stride for first, stride in zip(place, strides, strict=True))
        sums[rest] = sums[rest] + moved if rest in sums else moved
    nothing = jnp.zeros_like(next(iter(sums.values())))

    def joined(rest: Place) -> Any:
        axis = len(rest)
        if axis == len(strides):
            return sums.get(rest, nothing)
        parts = [joined((*rest, number)) for number in range(strides[axis])]
        if len(parts) == 1:
            return parts[0]
        stacked = jnp.stack(parts, axis + 1)
        sizes = stacked.shape
        return stacked.reshape(*sizes[:axis], sizes[axis] * sizes[axis + 1], *sizes[axis + 2 :])

    return joined(())
