"""How much images differ, how they change from pixel to pixel, patches, YUV, and JPEG's quality."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from replicax.tf._calls import array, array_function, arrays, hosted, published, static_shape
from replicax.tf._files import decode_jpeg, encode_jpeg
from replicax.tf._image_colors import convert_image_dtype
from replicax.tf._random import stateless_uniform, uniform

_POWER_FACTORS = (0.0448, 0.2856, 0.3001, 0.2363, 0.1333)


def _in_floats(a: Any, b: Any, max_val: Any) -> tuple[Any, Any, Any, Any]:
    """Both images in floating-point numbers, and their largest number in these."""
    xp, (a, b) = arrays(a, b)
    top = np.asarray(max_val).astype(a.dtype)
    a, b, top = (array(convert_image_dtype(one, np.float32))[1] for one in (a, b, top))
    return xp, a, b, top


@array_function
def psnr(a: Any, b: Any, max_val: Any, name: str | None = None) -> Any:
    """The peak signal-to-noise ratio of images, in decibels; `max_val` is the largest range."""
    xp, a, b, top = _in_floats(a, b, max_val)
    error = xp.mean(xp.square(a - b), axis=(-3, -2, -1))
    return (20 * xp.log10(top) - 10 * xp.log10(error)).astype(np.float32)


def _similar(a: Any, b: Any, top: Any, size: int, sigma: float, k1: float, k2: float) -> Any:
    """Of each pixel and channel the similarity, and that of contrast and structure alone."""
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
    _, a, b, top = _in_floats(img1, img2, max_val)
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
    _, a, b, top = _in_floats(img1, img2, max_val)
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


@array_function
def total_variation(images: Any, name: str | None = None) -> Any:
    """The sum of the differences of neighbouring pixels, of each image."""
    xp, x = array(images)
    down, across = x[..., 1:, :, :] - x[..., :-1, :, :], x[..., 1:, :] - x[..., :-1, :]
    return sum(xp.sum(xp.abs(one), axis=(-3, -2, -1)) for one in (down, across))


@array_function
def image_gradients(image: Any) -> tuple[Any, Any]:
    """What each pixel differs by from the one below, and from the one to the right; 0 at edges."""
    xp, x = array(image)
    down, across = x[:, 1:] - x[:, :-1], x[:, :, 1:] - x[:, :, :-1]
    none = (0, 0)
    return xp.pad(down, (none, (0, 1), none, none)), xp.pad(across, (none, none, (0, 1), none))


@array_function
def sobel_edges(image: Any) -> Any:
    """Sobel's edges: along a new last axis the change downwards and that to the right."""
    xp, x = array(image)
    x = xp.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)), mode="reflect")
    down, across = x[:, 2:] - x[:, :-2], x[:, :, 2:] - x[:, :, :-2]
    down = down[:, :, :-2] + 2 * down[:, :, 1:-1] + down[:, :, 2:]
    across = across[:, :-2] + 2 * across[:, 1:-1] + across[:, 2:]
    return xp.stack([down, across], axis=-1)


@array_function
def extract_patches(
    images: Any, sizes: Any, strides: Any, rates: Any, padding: str, name: str | None = None
) -> Any:
    """Patches of images, each flat along the last axis."""
    x = jnp.asarray(images)
    size = static_shape(sizes)[1:3]
    found = lax.conv_general_dilated_patches(
        x,
        size,
        static_shape(strides)[1:3],
        padding,
        rhs_dilation=static_shape(rates)[1:3],
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
        precision=lax.Precision.HIGHEST,
    )
    apart = found.reshape(*found.shape[:3], x.shape[-1], -1)  # XLA has the channels outside
    return jnp.swapaxes(apart, -1, -2).reshape(found.shape)


def _recolored(name: str, matrix: Any, text: str) -> Callable[..., Any]:
    def function(images: Any, name: str | None = None) -> Any:
        xp, x = array(images)
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
    pixels = np.asarray(convert_image_dtype(image, np.uint8, saturate=True))
    shown = decode_jpeg(encode_jpeg(pixels, quality=int(jpeg_quality)), pixels.shape[-1])
    return hosted(convert_image_dtype(shown, np.dtype(image.dtype), saturate=True))


def random_jpeg_quality(
    image: Any, min_jpeg_quality: int, max_jpeg_quality: int, seed: int | None = None
) -> Any:
    """An image as a JPEG of a random quality shows it, below the largest."""
    quality = uniform([], min_jpeg_quality, max_jpeg_quality, "int32", seed)
    return adjust_jpeg_quality(image, quality)


def stateless_random_jpeg_quality(
    image: Any, min_jpeg_quality: int, max_jpeg_quality: int, seed: Any
) -> Any:
    """As `random_jpeg_quality`; equal seeds give equal results."""
    quality = stateless_uniform([], seed, min_jpeg_quality, max_jpeg_quality, "int32")
    return adjust_jpeg_quality(image, quality)
