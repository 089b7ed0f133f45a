"""Images as bytes, decoded and encoded by Pillow or simplejpeg, and images of another size.

A resized row (then a column) is a weighted sum of a few rows of the image. Which rows, and the
weights, depend on the two sizes only: the results equal `tf.image.resize` without
antialiasing.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from replicax._core.errors import CorruptRecord, UsageError, needs
from replicax._cpu.images import resized

_MODES = {1: "L", 3: "RGB", 4: "RGBA"}  # as Pillow calls them
_JPEG = b"\xff\xd8"  # how one begins


def decode(contents: bytes, channels: int) -> np.ndarray:
    """Pixels of a JPEG, PNG, BMP, GIF or WebP: uint8 of shape (height, width, channels).

    `channels` 0 keeps the channels of the image.
    """
    if channels not in (0, *_MODES):
        raise UsageError.of("channels", "0, 1, 3 or 4", channels)
    if contents[:2] == _JPEG and (pixels := _of_jpeg(contents, channels)) is not None:
        return pixels
    with needs("Reading and writing images", extra="data"):
        from PIL import Image
    with _opened(contents) as image:
        if image.mode.startswith("I;16"):  # Pillow would clip values instead of scaling them
            image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
        if image.mode == "P" and "transparency" in image.info:
            image = image.convert("RGBA")
        mode = _MODES[channels] if channels else _own_mode(image)
        found = np.asarray(image if image.mode == mode else image.convert(mode))
    return found.reshape(*found.shape[:2], -1)


def _of_jpeg(contents: bytes, channels: int) -> np.ndarray | None:
    """The pixels of a JPEG; None without simplejpeg, or where Pillow has to explain an error.

    simplejpeg is quicker than Pillow, and its `fastdct` gives TensorFlow's pixels.
    """
    try:
        simplejpeg = importlib.import_module("simplejpeg")
    except ImportError:
        return None
    try:
        is_gray = channels == 1 or (
            not channels and simplejpeg.decode_jpeg_header(contents)[2] == "Gray"
        )
        space = "GRAY" if is_gray else "RGB"
        return simplejpeg.decode_jpeg(contents, space, fastdct=True) if channels != 4 else None
    except ValueError:  # damaged, or printed in four colors
        return None


def decode_frames(contents: bytes) -> np.ndarray:
    """Pixels of an animation: uint8 of shape (pictures, height, width, 3)."""
    with needs("Reading and writing images", extra="data"):
        from PIL import ImageSequence
    with _opened(contents) as image:
        return np.stack([np.asarray(one.convert("RGB")) for one in ImageSequence.Iterator(image)])


@contextlib.contextmanager
def _opened(contents: bytes) -> Iterator[Any]:
    """Open an image, and explain bytes that Pillow cannot read."""
    from PIL import Image, UnidentifiedImageError

    try:
        yield Image.open(io.BytesIO(contents))
    except (OSError, SyntaxError, ValueError) as error:
        unknown = isinstance(error, UnidentifiedImageError)
        raise CorruptRecord(
            f"Cannot decode {len(contents)} bytes as an image: "
            f"{'no known format' if unknown else error}. Replace the file or leave it out."
        ) from error


def _own_mode(image: Any) -> str:
    if image.mode in ("1", "L", "I"):
        return "L"
    return "RGBA" if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info else "RGB"


def encode(image: np.ndarray, kind: str, **options: Any) -> bytes:
    """The bytes of an image; `kind` is `jpeg` or `png`."""
    with needs("Reading and writing images", extra="data"):
        from PIL import Image
    pixels = np.asarray(image, np.uint8)
    fits = image.dtype.kind in "iu" and np.array_equal(pixels, image)
    if not fits or image.ndim != 3 or image.shape[-1] not in (*_MODES, 2 if kind == "png" else 1):
        raise UsageError(
            "Only uint8 images of shape (height, width, 1, 3 or 4) can be encoded, got "
            f"{image.dtype}{list(image.shape)}. Call `tf.image.convert_image_dtype` first."
        )
    out = io.BytesIO()
    Image.fromarray(pixels[:, :, 0] if pixels.shape[-1] == 1 else pixels).save(out, kind, **options)
    return out.getvalue()


def resize(images: np.ndarray, size: tuple[int, int], method: str) -> np.ndarray:
    """Images of the shape (…, height, width, channels), as float32 of this height and width."""
    *many, height, width, channels = images.shape
    rows, columns = taps(height, size[0], method), taps(width, size[1], method)
    images = images if images.dtype == np.uint8 else images.astype(np.float32, copy=False)
    found = resized(images, rows, columns)
    if found is not None:
        return found
    flat = _weighted(images.reshape(*many, height, -1), rows, 1)
    # Channels as columns: gathering from a flat row takes half the time.
    places = (columns[0][:, :, None] * channels + np.arange(channels)).reshape(len(columns[0]), -1)
    flat = _weighted(flat, (places, columns[1].repeat(channels, axis=1)), 0)
    return flat.reshape(*many, *size, channels)


def _weighted(images: np.ndarray, terms: Any, after: int) -> np.ndarray:
    """Σ weight · images[…, place], and then `after` more axes."""
    total: Any = 0
    for place, weight in zip(*terms, strict=True):
        total += images.take(place, axis=-1 - after) * weight.reshape(-1, *[1] * after)
    return total


@functools.lru_cache(maxsize=1024)
def taps(old: int, new: int, method: str) -> tuple[np.ndarray, np.ndarray]:
    """The old rows that each new row is a weighted sum of, and the weights.

    Both arrays have the shape (number of terms, `new`).
    """
    scale = old / new
    centres = (np.arange(new) + 0.5) * scale
    if method == "nearest":
        return np.floor(centres).astype(int)[None], np.ones((1, new), np.float32)
    radius, kernel = METHODS[method] or (scale / 2, None)
    first = np.floor(centres - radius).astype(int)
    places = first + np.arange(int(2 * radius) + 2)[:, None]
    if kernel is None:  # area: the part of each old place that the new one covers
        ends = np.minimum(places + 1, centres + radius), np.maximum(places, centres - radius)
        weights = np.maximum(ends[0] - ends[1], 0)
    else:
        distances = np.abs(places + 0.5 - centres)
        weights = np.where(distances < radius, kernel(distances), 0)
    weights *= (places >= 0) & (places < old)  # places outside the image add nothing
    weights /= weights.sum(axis=0)
    used = weights.any(axis=1)
    return np.clip(places, 0, old - 1)[used], weights[used].astype(np.float32)


def _cubic(x: np.ndarray) -> np.ndarray:
    # Keys, with a = -1/2.
    return np.where(x < 1, (1.5 * x - 2.5) * x**2 + 1, ((-0.5 * x + 2.5) * x - 4) * x + 2)


def _mitchell(x: np.ndarray) -> np.ndarray:
    # Mitchell and Netravali, with B = C = 1/3.
    near = (7 * x - 12) * x**2 + 16 / 3
    far = ((-7 / 3 * x + 12) * x - 20) * x + 32 / 3
    return np.where(x < 1, near, far) / 6


def _lanczos(radius: int) -> Callable[[np.ndarray], np.ndarray]:
    return lambda x: np.sinc(x) * np.sinc(x / radius)


# The radius of a kernel in old places, and its value at a distance; None without a kernel
METHODS: dict[str, tuple[float, Callable[[np.ndarray], np.ndarray]] | None] = {
    "bilinear": (1, lambda x: 1 - x),
    "nearest": None,
    "bicubic": (2, _cubic),
    "area": None,
    "lanczos3": (3, _lanczos(3)),
    "lanczos5": (5, _lanczos(5)),
    "gaussian": (1.5, lambda x: np.exp(-(x**2) / (2 * 0.5**2))),
    "mitchellcubic": (2, _mitchell),
}
