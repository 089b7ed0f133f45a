"""`tf.image`: images of other types and colors, also by chance.

NumPy arrays, as in pipelines, stay on the host. Random changes take seeds as `tf.random` does.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from replicax._core.host_calls import array_of
from replicax._cpu import images as kernels
from replicax.tf._calls import hosted, in_models, numpy_or_jax
from replicax.tf._random import stateless_uniform, uniform

_FLOAT32 = np.dtype(np.float32)
_NUMBERS = (int, float, np.ndarray, np.generic)
_GRAY = (0.2989, 0.5870, 0.1140)


@in_models
def convert_image_dtype(
    image: Any, dtype: Any, saturate: bool = False, name: str | None = None
) -> Any:
    """An image in another type: of numbers from 0 to 1, or of whole ones up to the largest."""
    found = image if hasattr(image, "dtype") else np.asarray(image)
    return hosted(_converted(found, np.dtype(dtype), saturate))


def _converted(image: Any, new: np.dtype[Any], saturate: bool = False) -> Any:
    old = np.dtype(image.dtype)
    if old == new:
        return image
    if _is_whole(old) and _is_whole(new):
        before, after = _limits(old)[1], _limits(new)[1]
        if before > after:
            return (image // ((before + 1) // (after + 1))).astype(new)
        return image.astype(new) * new.type((after + 1) // (before + 1))
    if _is_whole(old):
        return image.astype(new) * _scale(old, new)
    if not _is_whole(new):
        return image.astype(new)
    least, most = _limits(new)
    scaled = image * (most + 0.5)
    return (numpy_or_jax(image).clip(scaled, least, most) if saturate else scaled).astype(new)


@functools.cache
def _scale(old: np.dtype[Any], new: np.dtype[Any]) -> Any:
    return new.type(1 / _limits(old)[1])


@functools.cache
def _limits(dtype: np.dtype[Any]) -> tuple[int, int]:
    found = np.iinfo(dtype)
    return int(found.min), int(found.max)


def _is_whole(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "iu"


def _in_floats(
    image: Any, change: Callable[[Any, Any], Any], kernel: str = "", number: Any = None
) -> Any:
    """`change(image, numpy)` of an image in floating-point numbers, in its own type again.

    On the host a kernel does the same with this number, if it is known.
    """
    found = array_of(image)
    kind = found.dtype
    is_whole = _is_whole(kind)
    on_host = isinstance(found, np.ndarray)
    found = found.view(np.ndarray) if on_host else found
    floats = _converted(found, _FLOAT32) if is_whole else found
    changed = None
    if kernel and on_host and isinstance(number, _NUMBERS) and not getattr(number, "ndim", 0):
        changed = kernels.changed(kernel, floats, float(number))
    if changed is None:
        changed = change(floats, np if on_host else numpy_or_jax(floats))
    return hosted(_converted(changed, kind, saturate=True) if is_whole else changed)


@in_models
def adjust_brightness(image: Any, delta: Any) -> Any:
    """Brighter by `delta`, of numbers from 0 to 1."""
    return _in_floats(image, lambda x, numpy: (x + delta).astype(x.dtype, copy=False))


@in_models
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


@in_models
def adjust_gamma(image: Any, gamma: float = 1, gain: float = 1) -> Any:
    """`gain * image ** gamma`."""
    return _in_floats(image, lambda x, numpy: (gain * x**gamma).astype(x.dtype))


@in_models
def adjust_saturation(image: Any, saturation_factor: Any, name: str | None = None) -> Any:
    """The strength of the colors times a factor."""

    def change(x: Any, numpy: Any) -> Any:
        planes, low, value = _planes(x, numpy)
        # The strength, (value - low) / value, ends at 1; black and darker have none.
        most = value / numpy.maximum(value - low, np.finfo(x.dtype).tiny)
        factor = numpy.maximum(numpy.minimum(most, saturation_factor), 0)
        return _image([value - (value - plane) * factor for plane in planes], x, numpy)

    return _in_floats(image, change, kernels.SATURATION, saturation_factor)


@in_models
def adjust_hue(image: Any, delta: Any, name: str | None = None) -> Any:
    """Other colors: `delta` is a part of the circle, from -1 to 1."""

    def change(x: Any, numpy: Any) -> Any:
        planes, low, value = _planes(x, numpy)
        spread = value - low
        hue = _hue(planes, value, spread, numpy) + 6 * delta
        return _image(_of_hue(hue, low, spread, numpy), x, numpy)

    return _in_floats(image, change, kernels.HUE, 6 * delta)


@in_models
def rgb_to_hsv(images: Any, name: str | None = None) -> Any:
    """Hue, saturation and value, from 0 to 1, of red, green and blue."""
    numpy = numpy_or_jax(images)
    planes, low, value = _planes(images, numpy)
    spread = value - low
    hue = _hue(planes, value, spread, numpy) / 6
    strength = numpy.where(value > 0, spread / numpy.where(value > 0, value, 1), 0)
    return hosted(_image([hue - numpy.floor(hue), strength, value], images, numpy))


@in_models
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


@in_models
def rgb_to_grayscale(images: Any, name: str | None = None) -> Any:
    """One channel, as bright as the three look."""

    def change(x: Any, numpy: Any) -> Any:
        red, green, blue = (x[..., i, None] * x.dtype.type(_GRAY[i]) for i in range(3))
        return red + green + blue

    return _in_floats(images, change)


@in_models
def grayscale_to_rgb(images: Any, name: str | None = None) -> Any:
    """Three equal channels."""
    return hosted(numpy_or_jax(images).repeat(images, 3, axis=-1))


@in_models
def per_image_standardization(image: Any) -> Any:
    """Each image with mean 0 and variance 1; one that is all of one color becomes 0."""
    numpy = numpy_or_jax(image)
    found = image.astype(np.float32) if _is_whole(np.dtype(image.dtype)) else image
    axes = (-3, -2, -1)
    least = 1 / math.sqrt(math.prod(found.shape[-3:]))
    deviation = numpy.maximum(found.std(axis=axes, keepdims=True), least)
    return hosted((found - found.mean(axis=axes, keepdims=True)) / deviation)


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
