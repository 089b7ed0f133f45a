"""`tf.keras.distribution`: Keras' own layouts; the names of `keras.distribution`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicax.tf._forward import forward

if TYPE_CHECKING:
    from keras.distribution import *

__getattr__, __dir__ = forward(__name__, "keras.distribution")
