"""What arrays of JAX get so that they can be used as tensors: `numpy()` and `get_shape()`.

It is loaded as soon as JAX is, in the middle of other imports: so it imports nothing else of ours.
"""

from __future__ import annotations

from typing import Any, NoReturn

import jax
import numpy as np
from jax.core import Tracer

from replicax._core.errors import UsageError


def give_methods() -> None:
    """Give arrays the methods; those of compiled code, which have no value, an error."""
    for kind, method in ((jax.Array, _numpy), (Tracer, _no_numpy)):
        setattr(kind, "numpy", method)  # noqa: B010
        setattr(kind, "get_shape", _get_shape)  # noqa: B010


def _numpy(self: Any) -> Any:
    """The values in host memory; of one element, the number."""
    held = np.array(self)
    return held if held.ndim else held[()]


def _get_shape(self: Any) -> Any:
    """The shape, as a `TensorShape`."""
    from replicax.data._shape import TensorShape

    return TensorShape(self.shape)


def _no_numpy(self: Any) -> NoReturn:
    raise UsageError(
        f"`numpy()` is for values that are known. Received: {self}, which is computed by compiled "
        "code. It has no value while the code is compiled. Return it and call `numpy()` on the "
        "result, or use `tf.print`."
    )
