"""`tf.keras.random`: random numbers; the names of `keras.random`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicax.tf._forward import forward

if TYPE_CHECKING:
    from keras.random import *

__getattr__, __dir__ = forward(__name__, "keras.random")
