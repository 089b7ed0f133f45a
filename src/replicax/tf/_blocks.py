"""Blocks of pixels as channels or as images of a batch, and back."""

from __future__ import annotations

from typing import Any

import numpy as np

from replicax.tf._calls import array, array_function, static_shape, static_size


@array_function
def depth_to_space(
    input: Any, block_size: Any, data_format: str = "NHWC", name: str | None = None
) -> Any:
    """Channels as blocks of pixels: images become larger."""
    xp, x = array(input)
    x, size = xp.moveaxis(x, 1, -1) if data_format == "NCHW" else x, static_size(block_size)
    n, height, width, channels = x.shape
    x = x.reshape(n, height, width, size, size, channels // size**2).swapaxes(2, 3)
    x = x.reshape(n, height * size, width * size, -1)
    return xp.moveaxis(x, -1, 1) if data_format == "NCHW" else x


@array_function
def space_to_depth(
    input: Any, block_size: Any, data_format: str = "NHWC", name: str | None = None
) -> Any:
    """Blocks of pixels as channels: the inverse of `depth_to_space`."""
    xp, x = array(input)
    x, size = xp.moveaxis(x, 1, -1) if data_format == "NCHW" else x, static_size(block_size)
    n, height, width, channels = x.shape
    x = x.reshape(n, height // size, size, width // size, size, channels).swapaxes(2, 3)
    x = x.reshape(n, height // size, width // size, channels * size**2)
    return xp.moveaxis(x, -1, 1) if data_format == "NCHW" else x


@array_function
def space_to_batch(input: Any, block_shape: Any, paddings: Any, name: str | None = None) -> Any:
    """Pixels of a block as images of their own, in front of the batch, after padding."""
    xp, x = array(input)
    blocks, edges = static_shape(block_shape), np.asarray(paddings).tolist()
    count = len(blocks)
    x = xp.pad(x, [(0, 0), *map(tuple, edges), *[(0, 0)] * (x.ndim - 1 - count)])
    n, sizes, rest = x.shape[0], x.shape[1 : 1 + count], x.shape[1 + count :]
    outer = [size // block for size, block in zip(sizes, blocks, strict=True)]
    pairs = [one for pair in zip(outer, blocks, strict=True) for one in pair]
    x = x.reshape(n, *pairs, *rest)
    inside, around = range(2, 2 + 2 * count, 2), range(1, 1 + 2 * count, 2)
    x = x.transpose(*inside, 0, *around, *range(1 + 2 * count, x.ndim))
    return x.reshape(n * int(np.prod(blocks)), *outer, *rest)


@array_function
def batch_to_space(input: Any, block_shape: Any, crops: Any, name: str | None = None) -> Any:
    """The inverse of `space_to_batch`; `crops` are cut off at the edges."""
    _, x = array(input)
    blocks, edges = static_shape(block_shape), np.asarray(crops).tolist()
    count, number = len(blocks), int(np.prod(blocks))
    n, sizes, rest = x.shape[0] // number, x.shape[1 : 1 + count], x.shape[1 + count :]
    x = x.reshape(*blocks, n, *sizes, *rest)
    pairs = [place for axis in range(count) for place in (count + 1 + axis, axis)]
    x = x.transpose(count, *pairs, *range(1 + 2 * count, x.ndim))
    whole = [size * block for size, block in zip(sizes, blocks, strict=True)]
    x = x.reshape(n, *whole, *rest)
    cut = [slice(a, size - b) for (a, b), size in zip(edges, whole, strict=True)]
    return x[(slice(None), *cut)]
