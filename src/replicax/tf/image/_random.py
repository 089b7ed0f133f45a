"""Random changes of images: seeds as in `tf.random`, and without a state of their own."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from replicax._core.errors import UsageError
from replicax.tf import random
from replicax.tf._calls import hosted, numpy_or_jax
from replicax.tf.image import _colors as colors
from replicax.tf.image import _sizes as sizes


def random_flip_left_right(image: Any, seed: int | None = None) -> Any:
    """The image or its mirror image; of a batch, each by itself."""
    return _flipped(image, sizes.flip_left_right, random.uniform(image.shape[:-3], seed=seed))


def random_flip_up_down(image: Any, seed: int | None = None) -> Any:
    """The image, or it upside down; of a batch, each by itself."""
    return _flipped(image, sizes.flip_up_down, random.uniform(image.shape[:-3], seed=seed))


def stateless_random_flip_left_right(image: Any, seed: Any) -> Any:
    """As `random_flip_left_right`; equal seeds give equal results."""
    drawn = random.stateless_uniform(image.shape[:-3], seed)
    return _flipped(image, sizes.flip_left_right, drawn)


def stateless_random_flip_up_down(image: Any, seed: Any) -> Any:
    """As `random_flip_up_down`; equal seeds give equal results."""
    return _flipped(image, sizes.flip_up_down, random.stateless_uniform(image.shape[:-3], seed))


def _flipped(image: Any, flip: Any, drawn: Any) -> Any:
    numpy = numpy_or_jax(image, np.asarray(drawn) if isinstance(drawn, np.ndarray) else drawn)
    flips = numpy.asarray(drawn)[..., None, None, None] < 0.5
    return hosted(numpy.where(flips, flip(image), image))


def random_crop(value: Any, size: Any, seed: int | None = None, name: str | None = None) -> Any:
    """A window of this size, anywhere in an array.

    Raises:
        UsageError: If it is larger than the array.
    """
    del name
    room = _room(value, size)
    return _cropped(value, size, room, random.uniform([len(room)], seed=seed))


def stateless_random_crop(value: Any, size: Any, seed: Any, name: str | None = None) -> Any:
    """As `random_crop`; equal seeds give equal results."""
    del name
    room = _room(value, size)
    return _cropped(value, size, room, random.stateless_uniform([len(room)], seed))


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
        starts = np.minimum(places.astype(int), room)
        cut = tuple(slice(a, a + int(n)) for a, n in zip(starts, size, strict=True))
        return hosted(value[cut])
    starts = jax.numpy.minimum(jax.numpy.asarray(places).astype("int32"), np.array(room))
    return jax.lax.dynamic_slice(jax.numpy.asarray(value), list(starts), list(map(int, size)))


def random_brightness(image: Any, max_delta: float, seed: int | None = None) -> Any:
    """Brighter or darker by up to `max_delta`."""
    return colors.adjust_brightness(image, random.uniform([], -max_delta, max_delta, seed=seed))


def random_contrast(image: Any, lower: float, upper: float, seed: int | None = None) -> Any:
    """The contrast times a factor between the two."""
    return colors.adjust_contrast(image, random.uniform([], lower, upper, seed=seed))


def random_saturation(image: Any, lower: float, upper: float, seed: int | None = None) -> Any:
    """The strength of colors times a factor between the two."""
    return colors.adjust_saturation(image, random.uniform([], lower, upper, seed=seed))


def random_hue(image: Any, max_delta: float, seed: int | None = None) -> Any:
    """Other colors, by up to `max_delta` of the circle."""
    return colors.adjust_hue(image, random.uniform([], -max_delta, max_delta, seed=seed))


def stateless_random_brightness(image: Any, max_delta: float, seed: Any) -> Any:
    """As `random_brightness`; equal seeds give equal results."""
    return colors.adjust_brightness(
        image, random.stateless_uniform([], seed, -max_delta, max_delta)
    )


def stateless_random_contrast(image: Any, lower: float, upper: float, seed: Any) -> Any:
    """As `random_contrast`; equal seeds give equal results."""
    return colors.adjust_contrast(image, random.stateless_uniform([], seed, lower, upper))


def stateless_random_saturation(image: Any, lower: float, upper: float, seed: Any) -> Any:
    """As `random_saturation`; equal seeds give equal results."""
    return colors.adjust_saturation(image, random.stateless_uniform([], seed, lower, upper))


def stateless_random_hue(image: Any, max_delta: float, seed: Any) -> Any:
    """As `random_hue`; equal seeds give equal results."""
    return colors.adjust_hue(image, random.stateless_uniform([], seed, -max_delta, max_delta))
