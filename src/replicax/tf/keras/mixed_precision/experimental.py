"""`tf.keras.mixed_precision.experimental`: the first names of what is there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from replicax.tf._forward import forward

if TYPE_CHECKING:
    from keras.mixed_precision import *


def set_policy(policy: Any) -> None:
    """`tf.keras.mixed_precision.set_global_policy`."""
    import keras

    keras.mixed_precision.set_global_policy(policy)


__getattr__, __dir__ = forward(__name__, "keras.mixed_precision")
