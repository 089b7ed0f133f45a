"""`tf.experimental.dlpack`: arrays shared with other libraries."""

from __future__ import annotations

from typing import Any

import jax


def to_dlpack(tensor: jax.Array) -> Any:
    """What other libraries read an array through."""
    return tensor.__dlpack__()


def from_dlpack(dlcapsule: Any) -> jax.Array:
    """An array of another library, which has `__dlpack__`."""
    return jax.dlpack.from_dlpack(dlcapsule)
