"""Images in host memory, changed by the kernels of `src/images.c`, which release the GIL."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np

from replicax._cpu.kernels import function

CONTRAST, SATURATION, HUE = "rx_contrast", "rx_saturation", "rx_hue"
_MOST_CHANNELS = 16  # of the kernel for contrast
_BEGIN = ctypes.c_char * 0  # as an argument, the address that it is taken from
_POINTER, _INT, _DOUBLE = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double


class _Axis(ctypes.Structure):
    _fields_ = (
        ("old", _INT),
        ("new", _INT),
        ("terms", _INT),
        ("places", _POINTER),
        ("weights", _POINTER),
    )


def changed(name: str, images: np.ndarray, number: float) -> np.ndarray | None:
    """Images with changed colors; None if there is no kernel for them.

    Images are float32 of shape (…, height, width, channels). The number is a factor; for `HUE` it
    is the turn in sixths of the circle.
    """
    *many, height, width, channels = images.shape
    kernel = function(name, _POINTER, _POINTER, _INT, _INT, _INT, _DOUBLE)
    fits = channels == 3 or (name == CONTRAST and channels <= _MOST_CHANNELS)
    if kernel is None or images.dtype != np.float32 or not fits:
        return None
    images = np.ascontiguousarray(images)
    made = np.empty_like(images)
    pixels = height * width
    kernel(_address(images), _address(made), math.prod(many), pixels, channels, number)
    return made


def _address(array: np.ndarray) -> Any:
    """Where an array begins; `array.ctypes.data` takes as long as changing a small image."""
    buffer: Any = array
    return _BEGIN.from_buffer(buffer) if array.flags.writeable else array.ctypes.data


def resized(images: np.ndarray, rows: Any, columns: Any) -> np.ndarray | None:
    """Images of another size, as float32; None if there is no kernel.

    Images are bytes or float32 of shape (…, height, width, channels). `rows` are two arrays of
    shape (number of terms, new height): the old rows that are summed for each new row, and their
    weights. `columns` are the same for columns.
    """
    kernel = function("rx_resize", _POINTER, _INT, *[_POINTER] * 2, _INT, _INT, *[_POINTER] * 2)
    if kernel is None:
        return None
    *many, height, width, channels = images.shape
    images = np.ascontiguousarray(images)
    axes = [
        _Axis(old, places.shape[1], len(places), places.ctypes.data, weights.ctypes.data)
        for old, (places, weights) in ((height, rows), (width, columns))
    ]
    made = np.empty((*many, axes[0].new, axes[1].new, channels), np.float32)
    line = np.empty(width * channels, np.float32)
    kernel(
        images.ctypes.data,
        images.dtype == np.uint8,
        made.ctypes.data,
        line.ctypes.data,
        math.prod(many),
        channels,
        *map(ctypes.addressof, axes),
    )
    return made
