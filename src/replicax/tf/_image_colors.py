"""`tf.image`: other types and colors, also by chance; how much images differ.

NumPy arrays, as in pipelines, stay on the host. Random changes take seeds as `tf.random` does.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from replicax._core.errors import UsageError
from replicax._core.host_calls import array_of
from replicax._cpu import images as kernels
from replicax.tf._calls import (
    array,
    array_function,
    arrays,
    hosted,
    in_models,
    numpy_or_jax,
    published,
)
from replicax.tf._files import decode_jpeg, encode_jpeg
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
    if not jnp.issubdtype(new := np.dtype(dtype), np.number):
        raise UsageError.of("dtype", "an integer or floating-point type", dtype)
    return hosted(_converted(found, new, saturate))


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
    _check(gamma, 0, np.inf, "gamma")
    return _in_floats(image, lambda x, numpy: (gain * x**gamma).astype(x.dtype))


@in_models
def adjust_saturation(image: Any, saturation_factor: Any, name: str | None = None) -> Any:
    """The strength of the colors times a factor."""
    _check_colors(image)

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
    _check_colors(image)
    _check(delta, -1, 1, "delta")

    def change(x: Any, numpy: Any) -> Any:
        planes, low, value = _planes(x, numpy)
        spread = value - low
        hue = _hue(planes, value, spread, numpy) + 6 * delta
        return _image(_of_hue(hue, low, spread, numpy), x, numpy)

    return _in_floats(image, change, kernels.HUE, 6 * delta)


@in_models
def rgb_to_hsv(images: Any, name: str | None = None) -> Any:
    """Hue, saturation and value, from 0 to 1, of red, green and blue."""
    images, numpy = _colors(images)
    planes, low, value = _planes(images, numpy)
    spread = value - low
    hue = _hue(planes, value, spread, numpy) / 6
    strength = numpy.where(value > 0, spread / numpy.where(value > 0, value, 1), 0)
    return hosted(_image([hue - numpy.floor(hue), strength, value], images, numpy))


@in_models
def hsv_to_rgb(images: Any, name: str | None = None) -> Any:
    """Red, green and blue of hue, saturation and value."""
    images, numpy = _colors(images)
    hue, strength, value = numpy.moveaxis(images, -1, 0)
    spread = value * strength
    return hosted(_image(_of_hue(hue * 6, value - spread, spread, numpy), images, numpy))


def _check_colors(images: Any) -> tuple[Any, Any]:
    """The module that computes, and an array whose last axis has three colors."""
    xp, x = array(images)
    if x.shape[-1:] != (3,):
        raise UsageError.of("images", "of shape (…, 3)", tuple(x.shape))
    return xp, x


def _colors(image: Any) -> tuple[Any, Any]:
    """Three colors of each pixel, integers as float32, and the module that computes."""
    xp, x = _check_colors(image)
    return (x.astype(np.float32) if _is_whole(np.dtype(x.dtype)) else x), xp


def _are_known(*values: Any) -> bool:
    return all(isinstance(value, _NUMBERS) for value in values)


def _check(value: Any, least: float, most: float, name: str) -> None:
    """Check a number that is known; what compiled code computes is not."""
    if _are_known(value) and not np.all((least <= value) & (value <= most)):
        raise UsageError.of(name, f"from {least} to {most}", value)


def _up_to(delta: Any, most: float = np.inf) -> tuple[Any, Any]:
    _check(delta, 0, most, "max_delta")
    return -delta, delta


def _between(lower: Any, upper: Any, most: float = np.inf) -> tuple[Any, Any]:
    if _are_known(lower, upper) and not 0 <= lower < upper <= most:
        raise UsageError(
            f"A range must begin at 0 or above, end later, and end at {most} or below, got "
            f"({lower}, {upper})."
        )
    return lower, upper


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
    _check_colors(images)

    def change(x: Any, numpy: Any) -> Any:
        red, green, blue = (x[..., i, None] * x.dtype.type(_GRAY[i]) for i in range(3))
        return red + green + blue

    return _in_floats(images, change)


@in_models
def grayscale_to_rgb(images: Any, name: str | None = None) -> Any:
    """Three equal channels."""
    xp, x = array(images)
    if x.shape[-1:] != (1,):
        raise UsageError.of("images", "of shape (…, 1)", tuple(x.shape), "Add it: `x[..., None]`.")
    return hosted(xp.repeat(x, 3, axis=-1))


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
    return adjust_brightness(image, uniform([], *_up_to(max_delta), seed=seed))


def random_contrast(image: Any, lower: float, upper: float, seed: int | None = None) -> Any:
    """The contrast times a factor between the two."""
    return adjust_contrast(image, uniform([], *_between(lower, upper), seed=seed))


def random_saturation(image: Any, lower: float, upper: float, seed: int | None = None) -> Any:
    """The strength of colors times a factor between the two."""
    return adjust_saturation(image, uniform([], *_between(lower, upper), seed=seed))


def random_hue(image: Any, max_delta: float, seed: int | None = None) -> Any:
    """Other colors, by up to `max_delta` of the circle."""
    return adjust_hue(image, uniform([], *_up_to(max_delta, 0.5), seed=seed))


def stateless_random_brightness(image: Any, max_delta: float, seed: Any) -> Any:
    """As `random_brightness`; equal seeds give equal results."""
    return adjust_brightness(image, stateless_uniform([], seed, *_up_to(max_delta)))


def stateless_random_contrast(image: Any, lower: float, upper: float, seed: Any) -> Any:
    """As `random_contrast`; equal seeds give equal results."""
    return adjust_contrast(image, stateless_uniform([], seed, *_between(lower, upper)))


def stateless_random_saturation(image: Any, lower: float, upper: float, seed: Any) -> Any:
    """As `random_saturation`; equal seeds give equal results."""
    return adjust_saturation(image, stateless_uniform([], seed, *_between(lower, upper)))


def stateless_random_hue(image: Any, max_delta: float, seed: Any) -> Any:
    """As `random_hue`; equal seeds give equal results."""
    return adjust_hue(image, stateless_uniform([], seed, *_up_to(max_delta, 0.5)))


_POWER_FACTORS = (0.0448, 0.2856, 0.3001, 0.2363, 0.1333)


def _both_in_floats(a: Any, b: Any, max_val: Any) -> tuple[Any, Any, Any, Any]:
    """Both images in floating-point numbers, and their largest number in these."""
    xp, (a, b) = arrays(a, b)
    if a.ndim < 3 or a.shape[-3:] != b.shape[-3:]:
        raise UsageError(
            "Two images must have one shape (…, height, width, channels), got "
            f"{tuple(a.shape)} and {tuple(b.shape)}. Resize one of them."
        )
    top = np.asarray(max_val).astype(a.dtype)
    a, b, top = (array(convert_image_dtype(one, np.float32))[1] for one in (a, b, top))
    return xp, a, b, top


@array_function
def psnr(a: Any, b: Any, max_val: Any, name: str | None = None) -> Any:
    """The peak signal-to-noise ratio of images, in decibels; `max_val` is the largest range."""
    xp, a, b, top = _both_in_floats(a, b, max_val)
    error = xp.mean(xp.square(a - b), axis=(-3, -2, -1))
    return (20 * xp.log10(top) - 10 * xp.log10(error)).astype(np.float32)


def _similar(a: Any, b: Any, top: Any, size: int, sigma: float, k1: float, k2: float) -> Any:
    """The similarity of each pixel and channel, and its part of contrast and structure alone."""
    if min(a.shape[-3:-1]) < size:
        raise UsageError.of(
            "filter_size", f"at most the height and width, here {a.shape[-3:-1]}", size
        )
    places = np.arange(size, dtype=np.float32) - (size - 1) / 2
    bell = np.exp(-(places**2) / (2 * sigma**2))
    kernel = np.outer(bell, bell) / np.outer(bell, bell).sum()
    kernel = np.tile(kernel[:, :, None, None], (1, 1, 1, a.shape[-1])).astype(np.float32)

    def blurred(x: Any) -> Any:
        flat = x.reshape(-1, *x.shape[-3:])
        found = lax.conv_general_dilated(
            flat,
            jnp.asarray(kernel),
            (1, 1),
            "VALID",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=x.shape[-1],
            precision=lax.Precision.HIGHEST,
        )
        return found.reshape(*x.shape[:-3], *found.shape[1:])

    c1, c2 = (k1 * top) ** 2, (k2 * top) ** 2
    mean_a, mean_b = blurred(a), blurred(b)
    both, squares = 2 * mean_a * mean_b, mean_a**2 + mean_b**2
    structure = (2 * blurred(a * b) - both + c2) / (blurred(a * a + b * b) - squares + c2)
    return (both + c1) / (squares + c1) * structure, structure


@array_function
def ssim(
    img1: Any,
    img2: Any,
    max_val: Any,
    filter_size: int = 11,
    filter_sigma: float = 1.5,
    k1: float = 0.01,
    k2: float = 0.03,
    return_index_map: bool = False,
) -> Any:
    """The structural similarity of images, at most 1; with a map, of each pixel."""
    _, a, b, top = _both_in_floats(img1, img2, max_val)
    found, _ = _similar(jnp.asarray(a), jnp.asarray(b), top, filter_size, filter_sigma, k1, k2)
    return found.mean(axis=-1) if return_index_map else found.mean(axis=(-3, -2, -1))


@array_function
def ssim_multiscale(
    img1: Any,
    img2: Any,
    max_val: Any,
    power_factors: Any = _POWER_FACTORS,
    filter_size: int = 11,
    filter_sigma: float = 1.5,
    k1: float = 0.01,
    k2: float = 0.03,
) -> Any:
    """The structural similarity over several scales, each half as large as the one before."""
    _, a, b, top = _both_in_floats(img1, img2, max_val)
    a, b, last = jnp.asarray(a), jnp.asarray(b), len(power_factors) - 1
    found = 1.0
    for scale, power in enumerate(power_factors):
        if scale:
            a, b = _halved(a), _halved(b)
        whole, structure = _similar(a, b, top, filter_size, filter_sigma, k1, k2)
        each = (whole if scale == last else structure).mean(axis=(-3, -2))
        found = found * jax.nn.relu(each) ** power
    return jnp.mean(jnp.asarray(found), axis=-1)


def _halved(x: Any) -> Any:
    odd = [(0, 0)] * (x.ndim - 3) + [(0, x.shape[-3] % 2), (0, x.shape[-2] % 2), (0, 0)]
    x = jnp.pad(x, odd, mode="symmetric")
    *outer, height, width, channels = x.shape
    return x.reshape(*outer, height // 2, 2, width // 2, 2, channels).mean(axis=(-4, -2))


def _recolored(name: str, matrix: Any, text: str) -> Callable[..., Any]:
    def function(images: Any, name: str | None = None) -> Any:
        xp, x = array(images)
        if x.shape[-1:] != (3,) or not jnp.issubdtype(x.dtype, jnp.floating):
            raise UsageError(
                "Colors must be floating-point numbers of shape (…, 3), got "
                f"{x.dtype}{list(x.shape)}. Call `tf.image.convert_image_dtype` first."
            )
        parts = [x[..., i, None] * np.asarray(row, x.dtype) for i, row in enumerate(matrix)]
        return xp.asarray(sum(parts))

    return array_function(published(function, name, text))


rgb_to_yuv = _recolored(
    "rgb_to_yuv",
    (
        (0.299, -0.14714119, 0.61497538),
        (0.587, -0.28886916, -0.51496512),
        (0.114, 0.43601035, -0.10001026),
    ),
    "Brightness and two colors, Y, U and V.",
)
yuv_to_rgb = _recolored(
    "yuv_to_rgb",
    ((1, 1, 1), (0, -0.394642334, 2.03206185), (1.13988303, -0.58062185, 0)),
    "Red, green and blue of Y, U and V.",
)
rgb_to_yiq = _recolored(
    "rgb_to_yiq",
    (
        (0.299, 0.59590059, 0.2115),
        (0.587, -0.27455667, -0.52273617),
        (0.114, -0.32134392, 0.31119955),
    ),
    "Brightness and two colors, Y, I and Q.",
)
yiq_to_rgb = _recolored(
    "yiq_to_rgb",
    (
        (1, 1, 1),
        (0.95598634, -0.27201283, -1.10674021),
        (0.6208248, -0.64720424, 1.70423049),
    ),
    "Red, green and blue of Y, I and Q.",
)


def adjust_jpeg_quality(image: Any, jpeg_quality: Any, name: str | None = None) -> Any:
    """An image as a JPEG of this quality shows it; on the host, by Pillow."""
    _check(jpeg_quality, 0, 100, "jpeg_quality")
    pixels = np.asarray(convert_image_dtype(image, np.uint8, saturate=True))
    shown = decode_jpeg(encode_jpeg(pixels, quality=int(jpeg_quality)), pixels.shape[-1])
    return hosted(convert_image_dtype(shown, np.dtype(image.dtype), saturate=True))


def random_jpeg_quality(
    image: Any, min_jpeg_quality: int, max_jpeg_quality: int, seed: int | None = None
) -> Any:
    """An image as a JPEG of a random quality shows it, below the largest."""
    qualities = _between(min_jpeg_quality, max_jpeg_quality, 100)
    quality = uniform([], *qualities, "int32", seed)
    return adjust_jpeg_quality(image, quality)


def stateless_random_jpeg_quality(
    image: Any, min_jpeg_quality: int, max_jpeg_quality: int, seed: Any
) -> Any:
    """As `random_jpeg_quality`; equal seeds give equal results."""
    qualities = _between(min_jpeg_quality, max_jpeg_quality, 100)
    quality = stateless_uniform([], seed, *qualities, "int32")
    return adjust_jpeg_quality(image, quality)
