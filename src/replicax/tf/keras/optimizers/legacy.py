"""`tf.keras.optimizers.legacy`: Keras' optimizers of today, which replace them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicax.tf._forward import forward

if TYPE_CHECKING:
    from keras.optimizers import *

__getattr__, __dir__ = forward(__name__, "keras.optimizers")
