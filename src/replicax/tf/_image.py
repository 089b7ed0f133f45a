"""`tf.image`: images of another size, other colors, and random changes of both.

NumPy arrays, as in pipelines, stay on the host. Random changes take seeds as `tf.random` does.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from replicax._core.errors import UsageError
from replicax._core.host_calls import array_of
from replicax._cpu import images as kernels
from replicax.data._resize import METHODS, taps
from replicax.data._resize import resize as resized
from replicax.tf._calls import hosted, numpy_or_jax
from replicax.tf._random import stateless_uniform, uniform


class ResizeMethod:
    """The names of the methods of `resize`."""

    BILINEAR = "bilinear"
    NEAREST_NEIGHBOR = "nearest"
    BICUBIC = "bicubic"
    AREA = "area"
    LANCZOS3 = "lanczos3"
    LANCZOS5 = "lanczos5"
    GAUSSIAN = "gaussian"
    MITCHELLCUBIC = "mitchellcubic"


# Methods with which JAX can average over what becomes smaller.
_ANTIALIASED = ("bilinear", "bicubic", "lanczos3", "lanczos5")


def resize(
    images: Any,
    size: Any,
    method: str = "bilinear",
    preserve_aspect_ratio: bool = False,
    antialias: bool = False,
    name: str | None = None,
) -> Any:
    """Images of another height and width, as float32; nearest neighbours keep their type.

    Args:
        images: An image (height, width, channels), or a batch of them.
        size: The new height and width.
        method: One of `ResizeMethod`.
        preserve_aspect_ratio: Whether to stay within `size`, and not distort.
        antialias: Whether to average over what becomes smaller.
        name: Not used.

    Raises:
        UsageError: If there is no such method, or these are no images.
    """
    image, numpy = _images(images)
    if method not in METHODS:
        raise UsageError(
            f"Images are resized by {', '.join(METHODS)}. Received: method={method!r}. There is no "
            "such method. Use one of these."
        )
    height, width = (int(one) for one in size)
    old = image.shape[-3:-1]
    if preserve_aspect_ratio:
        scale = min(height / old[0], width / old[1])
        height, width = (max(1, round(one * scale)) for one in old)
    if (height, width) == old and (method == "nearest" or image.dtype == np.float32):
        return hosted(image)
    if antialias and method in _ANTIALIASED:
        shape = (*image.shape[:-3], height, width, image.shape[-1])
        found = jax.image.resize(image.astype("float32"), shape, method)
        return hosted(np.asarray(found)) if numpy is np else found
    if numpy is np and method != "nearest":
        return hosted(resized(image, (height, width), method))
    for axis, new in ((image.ndim - 3, height), (image.ndim - 2, width)):
        image = _along(image, axis, new, method, numpy)
    return hosted(image)


def _along(image: Any, axis: int, new: int, method: str, numpy: Any) -> Any:
    places, weights = taps(image.shape[axis], new, method)
    if method == "nearest":
        return numpy.take(image, np.asarray(places)[0], axis=axis)
    after = image.ndim - axis - 1
    parts = (
        numpy.take(image, place, axis=axis).astype(np.float32)
        * np.asarray(weight, np.float32).reshape(-1, *[1] * after)
        for place, weight in zip(places, weights, strict=True)
    )
    return sum(parts)


def crop_to_bounding_box(
    image: Any, offset_height: int, offset_width: int, target_height: int, target_width: int
) -> Any:
    """A window of an image, or of each of a batch.

    Raises:
        UsageError: If it reaches over the edge.
    """
    found, _ = _images(image)
    height, width = found.shape[-3:-1]
    bottom, right = offset_height + target_height, offset_width + target_width
    if min(offset_height, offset_width) < 0 or bottom > height or right > width:
        raise UsageError(
            f"A window lies in its image. Received: rows {offset_height} to {bottom} and columns "
            f"{offset_width} to {right} of {height} x {width}. There is nothing outside. Use a "
            "smaller window, or `resize_with_crop_or_pad`."
        )
    return hosted(found[..., offset_height:bottom, offset_width:right, :])


def pad_to_bounding_box(
    image: Any, offset_height: int, offset_width: int, target_height: int, target_width: int
) -> Any:
    """An image with zeros around it.

    Raises:
        UsageError: If the target is too small.
    """
    found, numpy = _images(image)
    height, width = found.shape[-3:-1]
    below = target_height - offset_height - height
    right = target_width - offset_width - width
    if min(below, right, offset_height, offset_width) < 0:
        raise UsageError(
            f"An image fits into what it is padded to. Received: {height} x {width} at "
            f"({offset_height}, {offset_width}) in {target_height} x {target_width}. Padding cuts "
            "nothing off. Use a larger target, or `resize_with_crop_or_pad`."
        )
    edges = [(0, 0)] * (found.ndim - 3)
    edges += [(offset_height, below), (offset_width, right), (0, 0)]
    return hosted(numpy.pad(found, edges))


def resize_with_crop_or_pad(image: Any, target_height: int, target_width: int) -> Any:
    """An image of this size: cut off, or padded with zeros, on both sides alike."""
    found, _ = _images(image)
    height, width = found.shape[-3:-1]
    kept = min(height, target_height), min(width, target_width)
    top, left = max(0, (height - target_height) // 2), max(0, (width - target_width) // 2)
    cut = crop_to_bounding_box(found, top, left, *kept)
    above, before = (target_height - kept[0]) // 2, (target_width - kept[1]) // 2
    return pad_to_bounding_box(cut, above, before, target_height, target_width)


def resize_with_pad(
    image: Any,
    target_height: int,
    target_width: int,
    method: str = "bilinear",
    antialias: bool = False,
) -> Any:
    """An image of this size: resized without distortion, and padded with zeros."""
    found, _ = _images(image)
    target, old = (target_height, target_width), found.shape[-3:-1]
    scale = min(new / size for new, size in zip(target, old, strict=True))
    exact = [size * scale for size in old]
    resized = resize(found, [int(size) for size in exact], method, antialias=antialias)
    # As TensorFlow: half of what is left before it is rounded.
    offsets = [int(max(0, new - size) / 2) for new, size in zip(target, exact, strict=True)]
    return pad_to_bounding_box(resized, offsets[0], offsets[1], target_height, target_width)


def central_crop(image: Any, central_fraction: float) -> Any:
    """The middle of an image.

    Raises:
        UsageError: If the fraction is not between 0 and 1.
    """
    if not 0 < central_fraction <= 1:
        raise UsageError(
            "The middle of an image is a part of it. Received: "
            f"central_fraction={central_fraction}. Pass a number above 0, up to 1."
        )
    found, _ = _images(image)
    height, width = found.shape[-3:-1]
    top = int((height - height * central_fraction) / 2)
    left = int((width - width * central_fraction) / 2)
    return crop_to_bounding_box(found, top, left, height - 2 * top, width - 2 * left)


def flip_left_right(image: Any) -> Any:
    """The mirror image."""
    return hosted(_images(image)[0][..., ::-1, :])


def flip_up_down(image: Any) -> Any:
    """The image upside down."""
    return hosted(_images(image)[0][..., ::-1, :, :])


def transpose(image: Any, name: str | None = None) -> Any:
    """Rows as columns."""
    found, numpy = _images(image)
    return hosted(numpy.swapaxes(found, -3, -2))


def rot90(image: Any, k: int = 1, name: str | None = None) -> Any:
    """Turned to the left, `k` times by 90 degrees."""
    found, numpy = _images(image)
    return hosted(numpy.rot90(found, k, axes=(found.ndim - 3, found.ndim - 2)))


def _images(image: Any) -> tuple[Any, Any]:
    """An array of one or more images, and what computes with it."""
    found = array_of(image)
    if found.ndim not in (3, 4):
        raise UsageError(
            "Images have the shape (height, width, channels), and a batch of them an axis more. "
            f"Received: shape {tuple(found.shape)}. Which axis is which cannot be known. Add the "
            "axis that is missing, for example the channels by `image[..., None]`."
        )
    numpy = numpy_or_jax(found)
    return (found.view(np.ndarray) if numpy is np else found), numpy


_GRAY = (0.2989, 0.5870, 0.1140)


def convert_image_dtype(
    image: Any, dtype: Any, saturate: bool = False, name: str | None = None
) -> Any:
    """An image in another type: of numbers from 0 to 1, or of whole ones up to the largest.

    Args:
        image: The image.
        dtype: The type.
        saturate: Whether numbers above 1 become the largest of the type.
        name: Not used.
    """
    found = image if hasattr(image, "dtype") else np.asarray(image)
    old, new = np.dtype(found.dtype), np.dtype(dtype)
    numpy = numpy_or_jax(found)
    if old == new:
        return hosted(found)
    if _is_whole(old) and _is_whole(new):
        before, after = _largest(old), _largest(new)
        if before > after:
            return hosted((found // ((before + 1) // (after + 1))).astype(new))
        return hosted(found.astype(new) * new.type((after + 1) // (before + 1)))
    if _is_whole(old):
        return hosted(found.astype(new) * new.type(1 / _largest(old)))
    if not _is_whole(new):
        return hosted(found.astype(new))
    scaled = found * (_largest(new) + 0.5)
    scaled = numpy.clip(scaled, np.iinfo(new).min, _largest(new)) if saturate else scaled
    return hosted(scaled.astype(new))


@functools.cache
def _largest(dtype: np.dtype[Any]) -> int:
    return int(np.iinfo(dtype).max)


def _is_whole(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "iu"


def _in_floats(
    image: Any, change: Callable[[Any, Any], Any], kernel: str = "", number: Any = None
) -> Any:
    """`change(image, numpy)` of an image in floating-point numbers, in its own type again.

    On the host a kernel does the same with this number, if it is known.
    """
    found = array_of(image)
    kind = np.dtype(found.dtype)
    is_whole = _is_whole(kind)
    floats = convert_image_dtype(found, np.float32) if is_whole else found
    floats = floats.view(np.ndarray) if isinstance(floats, np.ndarray) else floats
    numpy, changed = numpy_or_jax(floats), None
    is_number = isinstance(number, int | float) or getattr(number, "shape", None) == ()
    if kernel and is_number and numpy_or_jax(floats, number) is np:
        changed = kernels.changed(kernel, floats, float(number))
    changed = change(floats, numpy) if changed is None else changed
    return hosted(convert_image_dtype(changed, kind, saturate=True) if is_whole else changed)


def adjust_brightness(image: Any, delta: Any) -> Any:
    """Brighter by `delta`, of numbers from 0 to 1."""
    return _in_floats(image, lambda x, numpy: (x + delta).astype(x.dtype, copy=False))


def adjust_contrast(images: Any, contrast_factor: Any) -> Any:
    """The distance to the mean of each channel times a factor."""

    def change(x: Any, numpy: Any) -> Any:
        # By whole rows, as NumPy is slow where an axis of three numbers is by itself.
        sums = numpy.promote_types(x.dtype, np.float32)
        mean = x.mean(-3, sums, keepdims=True).mean(-2, keepdims=True)
        mean = mean.repeat(x.shape[-2], axis=-2)
        changed = x - mean
        changed *= contrast_factor
        changed += mean
        return changed.astype(x.dtype, copy=False)

    return _in_floats(images, change, kernels.CONTRAST, contrast_factor)


def adjust_gamma(image: Any, gamma: float = 1, gain: float = 1) -> Any:
    """`gain * image ** gamma`."""
    return _in_floats(image, lambda x, numpy: (gain * x**gamma).astype(x.dtype))


def adjust_saturation(image: Any, saturation_factor: Any, name: str | None = None) -> Any:
    """The strength of the colors times a factor."""

    def change(x: Any, numpy: Any) -> Any:
        planes, low, value = _planes(x, numpy)
        # The strength, (value - low) / value, ends at 1; black and darker have none.
        most = value / numpy.maximum(value - low, np.finfo(x.dtype).tiny)
        factor = numpy.maximum(numpy.minimum(most, saturation_factor), 0)
        return _image([value - (value - plane) * factor for plane in planes], x, numpy)

    return _in_floats(image, change, kernels.SATURATION, saturation_factor)


def adjust_hue(image: Any, delta: Any, name: str | None = None) -> Any:
    """Other colors: `delta` is a part of the circle, from -1 to 1."""

    def change(x: Any, numpy: Any) -> Any:
        planes, low, value = _planes(x, numpy)
        spread = value - low
        hue = _hue(planes, value, spread, numpy) + 6 * delta
        return _image(_of_hue(hue, low, spread, numpy), x, numpy)

    return _in_floats(image, change, kernels.HUE, 6 * delta)


def rgb_to_hsv(images: Any, name: str | None = None) -> Any:
    """Hue, saturation and value, from 0 to 1, of red, green and blue."""
    numpy = numpy_or_jax(images)
    planes, low, value = _planes(images, numpy)
    spread = value - low
    hue = _hue(planes, value, spread, numpy) / 6
    strength = numpy.where(value > 0, spread / numpy.where(value > 0, value, 1), 0)
    return hosted(_image([hue - numpy.floor(hue), strength, value], images, numpy))


def hsv_to_rgb(images: Any, name: str | None = None) -> Any:
    """Red, green and blue of hue, saturation and value."""
    numpy = numpy_or_jax(images)
    hue, strength, value = numpy.moveaxis(images, -1, 0)
    spread = value * strength
    return hosted(_image(_of_hue(hue * 6, value - spread, spread, numpy), images, numpy))


def _planes(x: Any, numpy: Any) -> tuple[Any, Any, Any]:
    """Red, green and blue, each in memory of its own, and the least and the most of them."""
    red, green, blue = planes = numpy.stack([x[..., 0], x[..., 1], x[..., 2]])
    low = numpy.minimum(numpy.minimum(red, green), blue)
    return planes, low, numpy.maximum(numpy.maximum(red, green), blue)


def _hue(planes: Any, value: Any, spread: Any, numpy: Any) -> Any:
    """The hue in sixths of the circle, of any turn; 0 of what has no color."""
    red, green, blue = planes
    share = 1 / numpy.where(spread > 0, spread, np.inf)
    of_others = numpy.where(value == green, (blue - red) * share + 2, (red - green) * share + 4)
    hue = numpy.where(value == red, (green - blue) * share, of_others)
    return numpy.where(spread > 0, hue, 0)


def _of_hue(hue: Any, low: Any, spread: Any, numpy: Any) -> list[Any]:
    """Red, green and blue of a hue in sixths of the circle."""
    hue = hue - 6 * numpy.floor(hue / 6)
    shares = numpy.abs(hue - 3) - 1, 2 - numpy.abs(hue - 2), 2 - numpy.abs(hue - 4)
    return [low + spread * numpy.clip(share, 0, 1) for share in shares]


def _image(planes: Any, like: Any, numpy: Any) -> Any:
    return numpy.stack(planes, axis=-1).astype(like.dtype, copy=False)


def rgb_to_grayscale(images: Any, name: str | None = None) -> Any:
    """One channel, as bright as the three look."""

    def change(x: Any, numpy: Any) -> Any:
        red, green, blue = (x[..., i, None] * x.dtype.type(_GRAY[i]) for i in range(3))
        return red + green + blue

    return _in_floats(images, change)


def grayscale_to_rgb(images: Any, name: str | None = None) -> Any:
    """Three equal channels."""
    return hosted(numpy_or_jax(images).repeat(images, 3, axis=-1))


def per_image_standardization(image: Any) -> Any:
    """Each image with mean 0 and variance 1; one that is all of one color becomes 0."""
    numpy = numpy_or_jax(image)
    found = image.astype(np.float32) if _is_whole(np.dtype(image.dtype)) else image
    axes = (-3, -2, -1)
    least = 1 / math.sqrt(math.prod(found.shape[-3:]))
    deviation = numpy.maximum(found.std(axis=axes, keepdims=True), least)
    return hosted((found - found.mean(axis=axes, keepdims=True)) / deviation)


def random_flip_left_right(image: Any, seed: int | None = None) -> Any:
    """The image or its mirror image; of a batch, each by itself."""
    return _flipped(image, flip_left_right, uniform(image.shape[:-3], seed=seed))


def random_flip_up_down(image: Any, seed: int | None = None) -> Any:
    """The image, or it upside down; of a batch, each by itself."""
    return _flipped(image, flip_up_down, uniform(image.shape[:-3], seed=seed))


def stateless_random_flip_left_right(image: Any, seed: Any) -> Any:
    """As `random_flip_left_right`; equal seeds give equal results."""
    return _flipped(image, flip_left_right, stateless_uniform(image.shape[:-3], seed))


def stateless_random_flip_up_down(image: Any, seed: Any) -> Any:
    """As `random_flip_up_down`; equal seeds give equal results."""
    return _flipped(image, flip_up_down, stateless_uniform(image.shape[:-3], seed))


def _flipped(image: Any, flip: Any, drawn: Any) -> Any:
    numpy = numpy_or_jax(image, drawn)
    flips = numpy.asarray(drawn)[..., None, None, None] < 0.5
    if numpy is np and image.ndim == 3:
        return flip(image) if flips else hosted(image)
    return hosted(numpy.where(flips, flip(image), image))


def random_crop(value: Any, size: Any, seed: int | None = None, name: str | None = None) -> Any:
    """A window of this size, anywhere in an array.

    Raises:
        UsageError: If it is larger than the array.
    """
    room = _room(value, size)
    return _cropped(value, size, room, uniform([len(room)], seed=seed))


def stateless_random_crop(value: Any, size: Any, seed: Any, name: str | None = None) -> Any:
    """As `random_crop`; equal seeds give equal results."""
    room = _room(value, size)
    return _cropped(value, size, room, stateless_uniform([len(room)], seed))


def _room(value: Any, size: Any) -> list[int]:
    room = [old - int(new) for old, new in zip(value.shape, size, strict=True)]
    if min(room) < 0:
        raise UsageError(
            f"A random window lies in its array. Received: size={list(map(int, size))} of shape "
            f"{tuple(value.shape)}. There is nothing outside. Use a smaller one, or pad the array "
            "before."
        )
    return room


def _cropped(value: Any, size: Any, room: Any, drawn: Any) -> Any:
    places = drawn * (np.array(room, np.float32) + 1)
    if isinstance(places, np.ndarray) and isinstance(value, np.ndarray):
        starts = map(min, places.astype(int).tolist(), room)
        return hosted(value[tuple(slice(a, a + int(n)) for a, n in zip(starts, size, strict=True))])
    starts = jax.numpy.minimum(jax.numpy.asarray(places).astype("int32"), np.array(room))
    return jax.lax.dynamic_slice(jax.numpy.asarray(value), list(starts), list(map(int, size)))


def random_brightness(image: Any, max_delta: float, seed: int | None = None) -> Any:
    """Brighter or darker by up to `max_delta`."""
    return adjust_brightness(image, uniform([], -max_delta, max_delta, seed=seed))


def random_contrast(image: Any, lower: float, upper: float, seed: int | None = None) -> Any:
    """The contrast times a factor between the two."""
    return adjust_contrast(image, uniform([], lower, upper, seed=seed))


def random_saturation(image: Any, lower: float, upper: float, seed: int | None = None) -> Any:
    """The strength of colors times a factor between the two."""
    return adjust_saturation(image, uniform([], lower, upper, seed=seed))


def random_hue(image: Any, max_delta: float, seed: int | None = None) -> Any:
    """Other colors, by up to `max_delta` of the circle."""
    return adjust_hue(image, uniform([], -max_delta, max_delta, seed=seed))


def stateless_random_brightness(image: Any, max_delta: float, seed: Any) -> Any:
    """As `random_brightness`; equal seeds give equal results."""
    return adjust_brightness(image, stateless_uniform([], seed, -max_delta, max_delta))


def stateless_random_contrast(image: Any, lower: float, upper: float, seed: Any) -> Any:
    """As `random_contrast`; equal seeds give equal results."""
    return adjust_contrast(image, stateless_uniform([], seed, lower, upper))


def stateless_random_saturation(image: Any, lower: float, upper: float, seed: Any) -> Any:
    """As `random_saturation`; equal seeds give equal results."""
    return adjust_saturation(image, stateless_uniform([], seed, lower, upper))


def stateless_random_hue(image: Any, max_delta: float, seed: Any) -> Any:
    """As `random_hue`; equal seeds give equal results."""
    return adjust_hue(image, stateless_uniform([], seed, -max_delta, max_delta))
