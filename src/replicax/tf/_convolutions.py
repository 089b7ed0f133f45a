"""Convolutions, pooling, blocks, edges and patches of pixels, in TensorFlow's layouts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from replicax._core.errors import UsageError
from replicax.tf._calls import array, array_function, published, static_shape, static_size
from replicax.tf._image import images_of

# The axes of space, by their number.
_SPACE = {1: "W", 2: "HW", 3: "DHW"}


def _channels_first(data_format: str | None, space: int) -> bool:
    if space not in _SPACE:
        raise UsageError.of("input", "a batch with 1 to 3 axes of space", f"{space} axes of space")
    known = {f"N{_SPACE[space]}C": False, f"NC{_SPACE[space]}": True}
    if data_format is None:
        return False
    if data_format not in known:
        raise UsageError.of("data_format", " or ".join(map(repr, known)), data_format)
    return known[data_format]


def _sizes(given: Any, space: int, first: bool) -> tuple[int, ...]:
    """Strides and the like, which have one number, or one for each axis of space, or of all."""
    found = (1,) if given is None else static_shape(given)
    around: tuple[int, ...] = ()
    if len(found) == space + 2:
        around, found = (found[:2], found[2:]) if first else (found[:1] + found[-1:], found[1:-1])
    found = found * space if len(found) == 1 else found
    if len(found) != space or min(found) < 1 or {*around} - {1}:
        raise UsageError(
            f"Strides, windows and dilations must be one integer of at least 1, or {space}, got "
            f"{given}. The batch and the channels have 1."
        )
    return found


def padding_of(given: Any, space: int, first: bool) -> Any:
    """A name, or a pair for each axis of space."""
    if isinstance(given, str):
        if given.upper() not in ("SAME", "VALID"):
            raise UsageError.of("padding", "'SAME', 'VALID', or a list of pairs", given)
        return given.upper()
    pairs = [static_shape(pair) for pair in given]
    return (pairs[2:] if first else pairs[1:-1]) if len(pairs) == space + 2 else pairs


def _convolved(
    space: int,
    input: Any,
    filters: Any,
    strides: Any,
    padding: Any,
    data_format: str | None,
    dilations: Any,
    groups: int | None = None,
) -> Any:
    x, kernel = jnp.asarray(input), jnp.asarray(filters)
    first = _channels_first(data_format, space)
    layout = f"NC{_SPACE[space]}" if first else f"N{_SPACE[space]}C"
    channels = x.shape[1 if first else -1]
    if x.ndim != space + 2 or kernel.ndim != space + 2 or channels % kernel.shape[-2]:
        raise UsageError(
            f"An input of shape {x.shape} in {layout} and filters of shape {kernel.shape} do not "
            f"fit. Both need {space + 2} axes; the filters' last but one divides the channels."
        )
    return lax.conv_general_dilated(
        x,
        kernel,
        _sizes(strides, space, first),
        padding_of(padding, space, first),
        rhs_dilation=_sizes(dilations, space, first),
        dimension_numbers=(layout, f"{_SPACE[space]}IO", layout),
        feature_group_count=channels // kernel.shape[-2] if groups is None else groups,
    )


@array_function
def conv1d(
    input: Any,
    filters: Any,
    stride: Any,
    padding: Any,
    data_format: str = "NWC",
    dilations: Any = None,
    name: str | None = None,
) -> Any:
    """The convolution of sequences with filters of shape (width, channels, filters)."""
    return _convolved(1, input, filters, stride, padding, data_format, dilations)


def _convolution(name: str, space: int, layout: str, text: str) -> Callable[..., Any]:
    def function(
        input: Any,
        filters: Any,
        strides: Any,
        padding: Any,
        data_format: str = layout,
        dilations: Any = None,
        name: str | None = None,
    ) -> Any:
        return _convolved(space, input, filters, strides, padding, data_format, dilations)

    return array_function(published(function, name, text))


conv2d = _convolution(
    "conv2d",
    2,
    "NHWC",
    "The convolution of images with filters of shape (height, width, channels, filters).",
)
conv3d = _convolution(
    "conv3d",
    3,
    "NDHWC",
    "The convolution of volumes, with filters of shape (depth, height, width, in, out).",
)


@array_function
def convolution(
    input: Any,
    filters: Any,
    strides: Any = None,
    padding: Any = "VALID",
    data_format: str | None = None,
    dilations: Any = None,
    name: str | None = None,
) -> Any:
    """The convolution with filters over as many axes of space as they have."""
    space = jnp.ndim(filters) - 2
    return _convolved(space, input, filters, strides, padding, data_format, dilations)


@array_function
def depthwise_conv2d(
    input: Any,
    filter: Any,
    strides: Any,
    padding: Any,
    data_format: str | None = None,
    dilations: Any = None,
    name: str | None = None,
) -> Any:
    """The convolution of each channel with filters of its own."""
    kernel = jnp.asarray(filter)
    channels = kernel.shape[2]
    kernel = kernel.reshape(*kernel.shape[:2], 1, -1)
    return _convolved(2, input, kernel, strides, padding, data_format, dilations, channels)


@array_function
def separable_conv2d(
    input: Any,
    depthwise_filter: Any,
    pointwise_filter: Any,
    strides: Any,
    padding: Any,
    data_format: str | None = None,
    dilations: Any = None,
    name: str | None = None,
) -> Any:
    """`depthwise_conv2d`, then the channels of each pixel mixed."""
    each = depthwise_conv2d(input, depthwise_filter, strides, padding, data_format, dilations)
    return _convolved(2, each, pointwise_filter, 1, "VALID", data_format, None)


def _transposed(name: str, space: int | None, layout: str | None) -> Callable[..., Any]:
    """The gradient of a convolution with respect to its input."""

    def function(
        input: Any,
        filters: Any,
        output_shape: Any,
        strides: Any,
        padding: str = "SAME",
        data_format: str | None = layout,
        dilations: Any = None,
        name: str | None = None,
    ) -> Any:
        x, kernel = jnp.asarray(input), jnp.asarray(filters)
        shape = jnp.zeros(static_shape(output_shape), x.dtype)

        def forward(images: Any) -> Any:
            axes = space or x.ndim - 2
            return _convolved(axes, images, kernel, strides, padding, data_format, dilations)

        # It is linear: its transpose needs no point to be taken at.
        try:
            (found,) = jax.linear_transpose(forward, shape)(x)
        except TypeError as error:
            raise UsageError(
                f"`output_shape` {shape.shape} does not belong to an input of shape {x.shape}. "
                "Correct the strides or `output_shape`."
            ) from error
        return found

    text = """The gradient of a convolution for its input: images become larger.

    Filters have the shape (height, width, channels of the result, channels of the input).
    """
    return array_function(published(function, name, text))


conv_transpose = _transposed("conv_transpose", None, None)
conv1d_transpose = _transposed("conv1d_transpose", 1, "NWC")
conv2d_transpose = _transposed("conv2d_transpose", 2, "NHWC")
conv3d_transpose = _transposed("conv3d_transpose", 3, "NDHWC")


@array_function
def atrous_conv2d(
    value: Any, filters: Any, rate: Any, padding: Any, name: str | None = None
) -> Any:
    """`conv2d` whose filters see every `rate`-th pixel."""
    return _convolved(2, value, filters, 1, padding, None, rate)


@array_function
def bias_add(value: Any, bias: Any, data_format: str | None = None, name: str | None = None) -> Any:
    """The array plus a number for each channel."""
    x, bias = jnp.asarray(value), jnp.asarray(bias)
    first = data_format is not None and data_format.startswith("NC") and data_format != "NC"
    if bias.size != x.shape[1 if first else -1]:
        raise UsageError(
            f"`bias` needs a number for each channel of an array of shape {x.shape}, got shape "
            f"{bias.shape}."
        )
    return x + (bias.reshape(-1, *(1,) * (x.ndim - 2)) if first else bias)


def _pooled(
    mean: bool, space: int, x: Any, ksize: Any, strides: Any, padding: Any, layout: str | None
) -> Any:
    first = _channels_first(layout, space)

    def whole(sizes: tuple[int, ...]) -> tuple[int, ...]:
        return (1, 1, *sizes) if first else (1, *sizes, 1)

    window, steps = (whole(_sizes(one, space, first)) for one in (ksize, strides))
    pads = padding_of(padding, space, first)
    if not isinstance(pads, str):
        pads = [(0, 0), (0, 0), *pads] if first else [(0, 0), *pads, (0, 0)]
    if not mean:
        floating = jnp.issubdtype(x.dtype, jnp.floating)
        least = -np.inf if floating else jnp.iinfo(x.dtype).min
        return lax.reduce_window(x, np.array(least, x.dtype)[()], lax.max, window, steps, pads)
    zero = np.array(0, x.dtype)[()]
    total = lax.reduce_window(x, zero, lax.add, window, steps, pads)
    # What is beyond the edge is not counted.
    ones = jnp.ones(
        [1 if size == 1 else n for size, n in zip(window, x.shape, strict=True)], x.dtype
    )
    return total / lax.reduce_window(ones, zero, lax.add, window, steps, pads)


def _pooling(name: str, space: int | None, layout: str | None, *, mean: bool) -> Callable[..., Any]:
    def function(
        input: Any,
        ksize: Any,
        strides: Any,
        padding: Any,
        data_format: str | None = layout,
        name: str | None = None,
    ) -> Any:
        x = jnp.asarray(input)
        return _pooled(mean, space or x.ndim - 2, x, ksize, strides, padding, data_format)

    what = "mean" if mean else "largest element"
    over = f"{space} axes of space" if space else "as many axes of space as there are"
    return array_function(published(function, name, f"The {what} of each window, over {over}."))


avg_pool = _pooling("avg_pool", None, None, mean=True)
avg_pool1d = _pooling("avg_pool1d", 1, "NWC", mean=True)
avg_pool2d = _pooling("avg_pool2d", 2, "NHWC", mean=True)
avg_pool3d = _pooling("avg_pool3d", 3, "NDHWC", mean=True)
max_pool = _pooling("max_pool", None, None, mean=False)
max_pool1d = _pooling("max_pool1d", 1, "NWC", mean=False)
max_pool2d = _pooling("max_pool2d", 2, "NHWC", mean=False)
max_pool3d = _pooling("max_pool3d", 3, "NDHWC", mean=False)


@array_function
def depth_to_space(
    input: Any, block_size: Any, data_format: str = "NHWC", name: str | None = None
) -> Any:
    """Channels as blocks of pixels: images become larger."""
    xp, x = array(input)
    first, size = _channels_first(data_format, 2), static_size(block_size)
    x = xp.moveaxis(x, 1, -1) if first else x
    n, height, width, channels = x.shape
    x = x.reshape(n, height, width, size, size, channels // size**2).swapaxes(2, 3)
    x = x.reshape(n, height * size, width * size, -1)
    return xp.moveaxis(x, -1, 1) if first else x


@array_function
def space_to_depth(
    input: Any, block_size: Any, data_format: str = "NHWC", name: str | None = None
) -> Any:
    """Blocks of pixels as channels: the inverse of `depth_to_space`."""
    xp, x = array(input)
    first, size = _channels_first(data_format, 2), static_size(block_size)
    x = xp.moveaxis(x, 1, -1) if first else x
    n, height, width, channels = x.shape
    x = x.reshape(n, height // size, size, width // size, size, channels).swapaxes(2, 3)
    x = x.reshape(n, height // size, width // size, channels * size**2)
    return xp.moveaxis(x, -1, 1) if first else x


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


@array_function
def total_variation(images: Any, name: str | None = None) -> Any:
    """The sum of the differences of neighbouring pixels, of each image."""
    x, xp = images_of(images)
    down, across = x[..., 1:, :, :] - x[..., :-1, :, :], x[..., 1:, :] - x[..., :-1, :]
    return sum(xp.sum(xp.abs(one), axis=(-3, -2, -1)) for one in (down, across))


def _batch(images: Any) -> tuple[Any, Any]:
    xp, x = array(images)
    if x.ndim != 4:
        raise UsageError.of("images", "a batch with four axes", tuple(x.shape))
    return xp, x


@array_function
def image_gradients(image: Any) -> tuple[Any, Any]:
    """The differences of each pixel from the next one below and to the right; 0 at edges."""
    xp, x = _batch(image)
    down, across = x[:, 1:] - x[:, :-1], x[:, :, 1:] - x[:, :, :-1]
    none = (0, 0)
    return xp.pad(down, (none, (0, 1), none, none)), xp.pad(across, (none, none, (0, 1), none))


@array_function
def sobel_edges(image: Any) -> Any:
    """Sobel's edges: along a new last axis the change downwards and that to the right."""
    xp, x = _batch(image)
    x = xp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), mode="reflect")
    down, across = x[:, 2:] - x[:, :-2], x[:, :, 2:] - x[:, :, :-2]
    down = down[:, :, :-2] + 2 * down[:, :, 1:-1] + down[:, :, 2:]
    across = across[:, :-2] + 2 * across[:, 1:-1] + across[:, 2:]
    return xp.stack([down, across], axis=-1)


def _height_and_width(name: str, given: Any) -> list[int]:
    outer, *each, inner = static_shape(given)
    if len(each) != 2 or (outer, inner) != (1, 1) or min(each) < 1:
        raise UsageError.of(name, "[1, height, width, 1], at least 1 each", given)
    return each


@array_function
def extract_patches(
    images: Any, sizes: Any, strides: Any, rates: Any, padding: str, name: str | None = None
) -> Any:
    """Patches of images, each flat along the last axis."""
    x = jnp.asarray(_batch(images)[1])
    found = lax.conv_general_dilated_patches(
        x,
        _height_and_width("sizes", sizes),
        _height_and_width("strides", strides),
        padding_of(padding, 2, first=False),
        rhs_dilation=_height_and_width("rates", rates),
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        precision=lax.Precision.HIGHEST,
    )
    apart = found.reshape(*found.shape[:3], x.shape[-1], -1)  # XLA has the channels outside
    return jnp.swapaxes(apart, -1, -2).reshape(found.shape)
