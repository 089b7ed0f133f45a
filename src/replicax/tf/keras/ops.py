"""`tf.keras.ops`: Keras' functions of tensors; the names of `keras.ops`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicax.tf._forward import forward

if TYPE_CHECKING:
    from keras.ops import *

__getattr__, __dir__ = forward(__name__, "keras.ops")
