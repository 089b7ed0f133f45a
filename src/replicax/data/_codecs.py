"""Images as bytes, decoded and encoded by Pillow, and JPEGs by simplejpeg where it is installed."""

from __future__ import annotations

import contextlib
import importlib
import io
from collections.abc import Iterator
from typing import Any

import numpy as np

from replicax._core.errors import CorruptRecord, needs

_MODES = {1: "L", 3: "RGB", 4: "RGBA"}  # as Pillow calls them
_JPEG = b"\xff\xd8"  # how one begins


def decode(contents: bytes, channels: int) -> np.ndarray:
    """Pixels of a JPEG, PNG, BMP, GIF or WebP: uint8 of shape (height, width, channels).

    `channels` 0 keeps the channels of the image.
    """
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
    from PIL import Image

    try:
        yield Image.open(io.BytesIO(contents))
    except (OSError, SyntaxError, ValueError) as error:
        raise CorruptRecord(
            f"Cannot decode {len(contents)} bytes as an image: {error}. Replace the file or leave "
            "it out."
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
    out = io.BytesIO()
    Image.fromarray(pixels[:, :, 0] if pixels.shape[-1] == 1 else pixels).save(out, kind, **options)
    return out.getvalue()
