"""The numbers of images: their type, brightness, contrast and colors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from replicax.tf._calls import hosted, numpy_or_jax

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
    del name
    found = image if hasattr(image, "dtype") else np.asarray(image)
    old, new = np.dtype(found.dtype), np.dtype(dtype)
    numpy = numpy_or_jax(found)
    if old == new:
        return hosted(found)
    if _is_whole(old) and _is_whole(new):
        before, after = np.iinfo(old).max, np.iinfo(new).max
        if before > after:
            return hosted((found // ((before + 1) // (after + 1))).astype(new))
        return hosted(found.astype(new) * new.type((after + 1) // (before + 1)))
    if _is_whole(old):
        return hosted(found.astype(new) * new.type(1 / np.iinfo(old).max))
    if not _is_whole(new):
        return hosted(found.astype(new))
    top = np.iinfo(new).max
    scaled = found * (top + 0.5)
    scaled = numpy.clip(scaled, np.iinfo(new).min, top) if saturate else scaled
    return hosted(scaled.astype(new))


def _is_whole(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "iu"


def _in_floats(image: Any, change: Callable[[Any, Any], Any]) -> Any:
    """`change(image, numpy)` of an image in floating-point numbers, in its own type again."""
    found = image if hasattr(image, "dtype") else np.asarray(image)
    kind = np.dtype(found.dtype)
    floats = found if not _is_whole(kind) else convert_image_dtype(found, np.float32)
    floats = floats.view(np.ndarray) if isinstance(floats, np.ndarray) else floats
    changed = change(floats, numpy_or_jax(floats))
    return hosted(convert_image_dtype(changed, kind, saturate=True))


def adjust_brightness(image: Any, delta: Any) -> Any:
    """Brighter by `delta`, of numbers from 0 to 1."""
    return _in_floats(image, lambda x, numpy: (x + delta).astype(x.dtype))


def adjust_contrast(images: Any, contrast_factor: Any) -> Any:
    """The distance to the mean of each channel times a factor."""

    def change(x: Any, numpy: Any) -> Any:
        mean = x.mean(axis=(-3, -2), keepdims=True)
        return ((x - mean) * contrast_factor + mean).astype(x.dtype)

    return _in_floats(images, change)


def adjust_gamma(image: Any, gamma: float = 1, gain: float = 1) -> Any:
    """`gain * image ** gamma`."""
    return _in_floats(image, lambda x, numpy: (gain * x**gamma).astype(x.dtype))


def adjust_saturation(image: Any, saturation_factor: Any, name: str | None = None) -> Any:
    """The strength of the colors times a factor."""
    del name

    def change(x: Any, numpy: Any) -> Any:
        hue, strength, value = _hsv(x, numpy)
        return _rgb(hue, numpy.clip(strength * saturation_factor, 0, 1), value, numpy)

    return _in_floats(image, change)


def adjust_hue(image: Any, delta: Any, name: str | None = None) -> Any:
    """Other colors: `delta` is a part of the circle, from -1 to 1."""
    del name

    def change(x: Any, numpy: Any) -> Any:
        hue, strength, value = _hsv(x, numpy)
        return _rgb((hue + delta) % 1, strength, value, numpy)

    return _in_floats(image, change)


def rgb_to_hsv(images: Any, name: str | None = None) -> Any:
    """Hue, saturation and value, from 0 to 1, of red, green and blue."""
    del name
    numpy = numpy_or_jax(images)
    return hosted(numpy.stack(_hsv(images, numpy), axis=-1))


def hsv_to_rgb(images: Any, name: str | None = None) -> Any:
    """Red, green and blue of hue, saturation and value."""
    del name
    return hosted(_rgb(images[..., 0], images[..., 1], images[..., 2], numpy_or_jax(images)))


def _hsv(x: Any, numpy: Any) -> tuple[Any, Any, Any]:
    red, green, blue = x[..., 0], x[..., 1], x[..., 2]
    value = x.max(axis=-1)
    spread = value - x.min(axis=-1)
    safe = numpy.where(spread > 0, spread, 1)
    hue = numpy.where(
        value == red,
        (green - blue) / safe % 6,
        numpy.where(value == green, (blue - red) / safe + 2, (red - green) / safe + 4),
    )
    strength = numpy.where(value > 0, spread / numpy.where(value > 0, value, 1), 0)
    return numpy.where(spread > 0, hue / 6, 0), strength, value


def _rgb(hue: Any, strength: Any, value: Any, numpy: Any) -> Any:
    def channel(shift: int) -> Any:
        place = (shift + hue * 6) % 6
        return value - value * strength * numpy.clip(numpy.minimum(place, 4 - place), 0, 1)

    return numpy.stack([channel(5), channel(3), channel(1)], axis=-1).astype(value.dtype)


def rgb_to_grayscale(images: Any, name: str | None = None) -> Any:
    """One channel, as bright as the three look."""
    del name

    def change(x: Any, numpy: Any) -> Any:
        weights = numpy.asarray(_GRAY, x.dtype)
        return (x * weights).sum(axis=-1, keepdims=True).astype(x.dtype)

    return _in_floats(images, change)


def grayscale_to_rgb(images: Any, name: str | None = None) -> Any:
    """Three equal channels."""
    del name
    return hosted(numpy_or_jax(images).repeat(images, 3, axis=-1))


def per_image_standardization(image: Any) -> Any:
    """Each image with mean 0 and variance 1; one that is all of one color becomes 0."""
    numpy = numpy_or_jax(image)
    found = image.astype(np.float32) if np.dtype(image.dtype).kind in "iu" else image
    axes = (-3, -2, -1)
    least = 1 / math.sqrt(math.prod(found.shape[-3:]))
    deviation = numpy.maximum(found.std(axis=axes, keepdims=True), least)
    return hosted((found - found.mean(axis=axes, keepdims=True)) / deviation)
