"""`tf.bitwise`, and `tf.bitcast`: the bits of integers, and of anything as another type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from replicax.tf._calls import array, array_function, arrays, numpy_dtype, published


def _of_bits(name: str, text: str) -> Callable[..., Any]:
    def function(x: Any, y: Any, name: str | None = None) -> Any:
        xp, (x, y) = arrays(x, y)
        return getattr(xp, own)(x, y)

    own = name
    return array_function(published(function, name, text))


bitwise_and = _of_bits("bitwise_and", "The bits that both have.")
bitwise_or = _of_bits("bitwise_or", "The bits that one of the two has.")
bitwise_xor = _of_bits("bitwise_xor", "The bits that only one of the two has.")
left_shift = _of_bits("left_shift", "The bits moved up, by `y` places.")
right_shift = _of_bits("right_shift", "The bits moved down, by `y` places; the sign stays.")


@array_function
def invert(x: Any, name: str | None = None) -> Any:
    """The bits that are not there."""
    xp, x = array(x)
    return xp.invert(x)


@array_function
def bitcast(input: Any, type: Any, name: str | None = None) -> Any:
    """The same bits as another type; of another size, the last axis is made or goes."""
    xp, x = array(input)
    kind = np.dtype(numpy_dtype(type, xp))
    if xp is not np:
        return jax.lax.bitcast_convert_type(x, kind)
    x = np.ascontiguousarray(x)
    if kind.itemsize < x.dtype.itemsize:
        return x[..., None].view(kind)
    return x.view(kind) if kind.itemsize == x.dtype.itemsize else x.view(kind)[..., 0]
