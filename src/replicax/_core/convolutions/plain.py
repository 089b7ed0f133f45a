"""Convolutions as other operations of JAX, where there is no kernel and XLA:CPU is slow.

Depthwise ones are sums of shifted slices; with one tap for each channel, a convolution is a matrix
product. On MobileNetV2 the two take a step from 1,028 ms to about 200.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from replicax._core.convolutions.forms import Form, Kind

_MOST_TAPS = 49  # a program for more of them grows long
_IMAGES = 4  # images × height × width × channels


def plain(form: Form, rank: int) -> Callable[..., Any] | None:
    """What computes a convolution of this form, called as its primitive is; None for XLA.

    Args:
        form: The form.
        rank: How many dimensions its operands have.
    """
    once = math.prod(form.kernel) == math.prod(form.strides) == 1 and not any(form.before)
    if once and form.groups == 1 and form.size == form.size_out:
        return _sum_over_pixels if form.kind is Kind.WEIGHT_GRADIENT else _product
    depthwise = form.groups == form.channels == form.channels_out > 1
    if not depthwise or rank != _IMAGES or math.prod(form.kernel) > _MOST_TAPS:
        return None
    return _kernel_gradient if form.kind is Kind.WEIGHT_GRADIENT else _shifted


def _product(lhs: Any, rhs: Any, *, dimension_numbers: Any, **_: Any) -> Any:
    inputs = dimension_numbers.rhs_spec[1] - (rhs.ndim - 2)
    weights = rhs.reshape(rhs.shape[-2:])
    return lax.dot_general(lhs, weights, (((lhs.ndim - 1,), (inputs,)), ((), ())))


def _sum_over_pixels(lhs: Any, rhs: Any, *, dimension_numbers: Any, **_: Any) -> Any:
    pixels = tuple(range(lhs.ndim - 1))
    inputs, outputs = dimension_numbers.out_spec[:2]
    first, second = (lhs, rhs) if inputs < outputs else (rhs, lhs)
    found = lax.dot_general(first, second, ((pixels, pixels), ((), ())))
    return found.reshape(*(1,) * (lhs.ndim - 2), *found.shape)


def _shifted(
    lhs: Any, rhs: Any, *, window_strides: Any, padding: Any, lhs_dilation: Any, rhs_dilation: Any,
    **_: Any,
) -> Any:  # fmt: skip
    padded, kernel = _padded(lhs, padding, lhs_dilation), rhs.shape[:-2]
    taps = rhs.reshape(*kernel, lhs.shape[-1])
    spans = [(size - 1) * gap + 1 for size, gap in zip(kernel, rhs_dilation, strict=True)]
    sizes = [
        (whole - span) // stride + 1
        for whole, span, stride in zip(padded.shape[1:-1], spans, window_strides, strict=True)
    ]
    total: Any = 0.0
    for tap in itertools.product(*map(range, kernel)):
        first = [place * gap for place, gap in zip(tap, rhs_dilation, strict=True)]
        total += _slice(padded, first, sizes, window_strides) * taps[tap]
    return total


def _kernel_gradient(
    lhs: Any, rhs: Any, *, window_strides: Any, padding: Any, rhs_dilation: Any,
    dimension_numbers: Any, **_: Any,
) -> Any:  # fmt: skip
    """Row by row of all images: a sum over whole slices takes ten times as long."""
    padded, (rows, columns) = _padded(lhs, padding, (1, 1)), rhs.shape[1:3]
    (down, right), (gap, gap_right) = window_strides, rhs_dilation
    height, width = (
        (whole - (size - 1) * each - 1) // stride + 1
        for whole, size, each, stride in zip(
            padded.shape[1:3], (rows, columns), rhs_dilation, window_strides, strict=True
        )
    )

    def add_row(row: Any, sums: list[Any]) -> list[Any]:
        slopes = lax.dynamic_index_in_dim(rhs, row, 1, keepdims=False)
        added = []
        for place in range(height):
            line = lax.dynamic_index_in_dim(padded, row * gap + place * down, 1, keepdims=False)
            for j in range(width):
                part = _slice(line, [j * right], [columns], [gap_right])
                added.append((part * slopes).sum(0))
        return [old + new for old, new in zip(sums, added, strict=True)]

    zeros = [jnp.zeros((columns, lhs.shape[-1]), lhs.dtype)] * (height * width)
    sums = lax.fori_loop(0, rows, add_row, zeros)
    found = jnp.stack([one.sum(0) for one in sums]).reshape(height, width, -1)
    one, channels = dimension_numbers.out_spec[:2]
    return jnp.expand_dims(found, 2 if one < channels else 3)


def _padded(images: Any, padding: Any, dilation: Sequence[int]) -> Any:
    edges = [(low, high, gap - 1) for (low, high), gap in zip(padding, dilation, strict=True)]
    return lax.pad(images, jnp.zeros((), images.dtype), [(0, 0, 0), *edges, (0, 0, 0)])


def _slice(array: Any, first: Sequence[int], sizes: Sequence[int], strides: Sequence[int]) -> Any:
    """Elements of the dimensions between the first and the last."""
    ends = [
        start + (size - 1) * stride + 1
        for start, size, stride in zip(first, sizes, strides, strict=True)
    ]
    return lax.slice(
        array,
        [0, *first, 0],
        [array.shape[0], *ends, array.shape[-1]],
        [1, *strides, 1],
    )
