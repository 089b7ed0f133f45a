"""`tf.image`: images of another size, parts of them, turned and mirrored ones, also by chance.

NumPy arrays, as in pipelines, stay on the host. Random changes take seeds as `tf.random` does.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from replicax._core.errors import UsageError, did_you_mean
from replicax._core.host_calls import array_of
from replicax.data._pixels import METHODS, taps
from replicax.data._pixels import resize as resized
from replicax.tf._calls import (
    concrete,
    hosted,
    in_models,
    numpy_or_jax,
    static_shape,
    static_size,
)
from replicax.tf._debugging import assert_less_equal, assert_non_negative
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


@in_models
def resize(
    images: Any,
    size: Any,
    method: str = "bilinear",
    preserve_aspect_ratio: bool = False,
    antialias: bool = False,
    name: str | None = None,
) -> Any:
    """Images of another height and width, as float32; nearest neighbours keep their type.

    Raises:
        UsageError: If there is no such method, or these are no images.
    """
    image, numpy = images_of(images)
    if method not in METHODS:
        raise UsageError(
            f"No resize method {method!r}.{did_you_mean(method, METHODS)} Methods are "
            f"{', '.join(METHODS)}."
        )
    height, width = size_of(size)
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


def size_of(size: Any, name: str = "size") -> tuple[int, int]:
    """A height and a width as numbers."""
    found = static_shape(size)
    if len(found) != 2 or min(found) < 1:
        raise UsageError.of(name, "a height and a width of at least 1", size)
    return found


@in_models
def crop_to_bounding_box(
    image: Any, offset_height: int, offset_width: int, target_height: int, target_width: int
) -> Any:
    """A window of an image, or of each of a batch.

    Raises:
        UsageError: If it reaches over the edge. An offset that compiled code computes is checked
            while it runs.
    """
    found, _ = images_of(image)
    height, width = found.shape[-3:-1]
    target_height, target_width = size_of([target_height, target_width])
    if _is_computed(offset_height, offset_width):
        _check_offsets(offset_height, offset_width, height - target_height, width - target_width)
        window = jax.lax.dynamic_slice_in_dim(found, offset_height, target_height, found.ndim - 3)
        return jax.lax.dynamic_slice_in_dim(window, offset_width, target_width, found.ndim - 2)
    bottom, right = offset_height + target_height, offset_width + target_width
    if min(offset_height, offset_width) < 0 or bottom > height or right > width:
        raise UsageError(
            f"The window of rows {offset_height} to {bottom} and columns {offset_width} to "
            f"{right} is not inside an image of {height} x {width}. Use a smaller window, or "
            "`resize_with_crop_or_pad`."
        )
    return hosted(found[..., offset_height:bottom, offset_width:right, :])


@in_models
def pad_to_bounding_box(
    image: Any, offset_height: int, offset_width: int, target_height: int, target_width: int
) -> Any:
    """An image with zeros around it.

    Raises:
        UsageError: If the target is too small. An offset that compiled code computes is checked
            while it runs.
    """
    found, numpy = images_of(image)
    height, width = found.shape[-3:-1]
    target_height, target_width = size_of([target_height, target_width])
    if _is_computed(offset_height, offset_width):
        _check_offsets(offset_height, offset_width, target_height - height, target_width - width)
        shape = (*found.shape[:-3], target_height, target_width, found.shape[-1])
        starts = [0] * (found.ndim - 3) + [offset_height, offset_width, 0]
        return jax.lax.dynamic_update_slice(jax.numpy.zeros(shape, found.dtype), found, starts)
    below = target_height - offset_height - height
    right = target_width - offset_width - width
    if min(below, right, offset_height, offset_width) < 0:
        raise UsageError(
            f"An image of {height} x {width} at ({offset_height}, {offset_width}) does not fit "
            f"into {target_height} x {target_width}. Pad to a larger size, or use "
            "`resize_with_crop_or_pad`."
        )
    edges = [(0, 0)] * (found.ndim - 3)
    edges += [(offset_height, below), (offset_width, right), (0, 0)]
    return hosted(numpy.pad(found, edges))


@in_models
def resize_with_crop_or_pad(image: Any, target_height: int, target_width: int) -> Any:
    """An image of this size: cut off, or padded with zeros, on both sides alike."""
    found, _ = images_of(image)
    height, width = found.shape[-3:-1]
    target_height, target_width = size_of([target_height, target_width])
    kept = min(height, target_height), min(width, target_width)
    top, left = max(0, (height - target_height) // 2), max(0, (width - target_width) // 2)
    cut = crop_to_bounding_box(found, top, left, *kept)
    above, before = (target_height - kept[0]) // 2, (target_width - kept[1]) // 2
    return pad_to_bounding_box(cut, above, before, target_height, target_width)


@in_models
def resize_with_pad(
    image: Any,
    target_height: int,
    target_width: int,
    method: str = "bilinear",
    antialias: bool = False,
) -> Any:
    """An image of this size: resized without distortion, and padded with zeros."""
    found, _ = images_of(image)
    target, old = size_of([target_height, target_width]), found.shape[-3:-1]
    scale = min(new / size for new, size in zip(target, old, strict=True))
    exact = [size * scale for size in old]
    resized = resize(found, [int(size) for size in exact], method, antialias=antialias)
    # As TensorFlow: half of what is left before it is rounded.
    offsets = [int(max(0, new - size) / 2) for new, size in zip(target, exact, strict=True)]
    return pad_to_bounding_box(resized, offsets[0], offsets[1], target_height, target_width)


@in_models
def central_crop(image: Any, central_fraction: float) -> Any:
    """The middle of an image.

    Raises:
        UsageError: If the fraction is not between 0 and 1.
    """
    if not isinstance(central_fraction, int | float):  # those would be rounded to 32 bits
        central_fraction = concrete(central_fraction, "tf.image.central_crop").item()
    if not 0 < central_fraction <= 1:
        raise UsageError.of("central_fraction", "above 0 and at most 1", central_fraction)
    found, _ = images_of(image)
    height, width = found.shape[-3:-1]
    top = int((height - height * central_fraction) / 2)
    left = int((width - width * central_fraction) / 2)
    return crop_to_bounding_box(found, top, left, height - 2 * top, width - 2 * left)


@in_models
def flip_left_right(image: Any) -> Any:
    """The mirror image."""
    found, numpy = images_of(image)
    if numpy is np:  # which takes twice as long to read pixels from right to left
        return hosted(found.take(np.arange(found.shape[-2])[::-1], axis=-2))
    return hosted(found[..., ::-1, :])


@in_models
def flip_up_down(image: Any) -> Any:
    """The image upside down."""
    return hosted(images_of(image)[0][..., ::-1, :, :])


def transpose(image: Any, name: str | None = None) -> Any:
    """Rows as columns."""
    found, numpy = images_of(image)
    return hosted(numpy.swapaxes(found, -3, -2))


@in_models
def rot90(image: Any, k: int = 1, name: str | None = None) -> Any:
    """Turned to the left, `k` times by 90 degrees."""
    found, numpy = images_of(image)
    return hosted(numpy.rot90(found, static_size(k), axes=(found.ndim - 3, found.ndim - 2)))


def _is_computed(*offsets: Any) -> bool:
    return any(isinstance(one, Tracer) for one in offsets)


def _check_offsets(down: Any, along: Any, lowest: int, rightmost: int) -> None:
    """Check computed offsets whenever the code runs, because XLA would move a window inside."""
    for offset, last in ((down, lowest), (along, rightmost)):
        assert_non_negative(offset, "The window is not inside the image")
        assert_less_equal(offset, last, "The window is not inside the image")


def images_of(image: Any) -> tuple[Any, Any]:
    """An image or a batch of images as an array, and the module that computes."""
    found = array_of(image)
    if found.ndim not in (3, 4):
        raise UsageError(
            "Images must have shape (height, width, channels), or with a batch axis before, got "
            f"{tuple(found.shape)}. Add a missing axis with `image[..., None]`."
        )
    numpy = numpy_or_jax(found)
    return (found.view(np.ndarray) if numpy is np else found), numpy


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
    size = static_shape(size)
    room = [old - new for old, new in zip(value.shape, size, strict=False)]
    if len(size) != len(value.shape) or min(room, default=0) < 0:
        raise UsageError(
            f"Cannot crop {list(size)} from an array of shape {tuple(value.shape)}. Use "
            "a smaller size with a number for each axis, or pad the array first."
        )
    return room


def _cropped(value: Any, size: Any, room: Any, drawn: Any) -> Any:
    places = drawn * (np.array(room, np.float32) + 1)
    if isinstance(places, np.ndarray) and isinstance(value, np.ndarray):
        starts = map(min, places.astype(int).tolist(), room)
        return hosted(value[tuple(slice(a, a + int(n)) for a, n in zip(starts, size, strict=True))])
    starts = jax.numpy.minimum(jax.numpy.asarray(places).astype("int32"), np.array(room))
    return jax.lax.dynamic_slice(jax.numpy.asarray(value), list(starts), list(map(int, size)))
