"""Images of another size: resized, cropped, padded, turned."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from replicax._core.errors import UsageError
from replicax.data._resize import METHODS, taps
from replicax.tf._calls import hosted, numpy_or_jax


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
    del name
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
        found = jax.image.resize(image.astype("float32"), shape, _ANTIALIASED[method])
        return hosted(np.asarray(found)) if numpy is np else found
    for axis, new in ((image.ndim - 3, height), (image.ndim - 2, width)):
        image = _along(image, axis, new, method, numpy)
    return hosted(image)


_ANTIALIASED = {
    "bilinear": "linear",
    "bicubic": "cubic",
    "lanczos3": "lanczos3",
    "lanczos5": "lanczos5",
}


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
    return pad_to_bounding_box(resized, *offsets, *target)


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
    del name
    found, numpy = _images(image)
    return hosted(numpy.swapaxes(found, -3, -2))


def rot90(image: Any, k: int = 1, name: str | None = None) -> Any:
    """Turned to the left, `k` times by 90 degrees."""
    del name
    found, numpy = _images(image)
    return hosted(numpy.rot90(found, k, axes=(found.ndim - 3, found.ndim - 2)))


def _images(image: Any) -> tuple[Any, Any]:
    """An array of one or more images, and what computes with it."""
    found = image if hasattr(image, "ndim") else np.asarray(image)
    if found.ndim not in (3, 4):
        raise UsageError(
            "Images have the shape (height, width, channels), and a batch of them an axis more. "
            f"Received: shape {tuple(found.shape)}. Which axis is which cannot be known. Add the "
            "axis that is missing, for example the channels by `image[..., None]`."
        )
    numpy = numpy_or_jax(found)
    return (found.view(np.ndarray) if numpy is np else found), numpy
