"""`tf.keras.initializers`: how weights begin; the names of `keras.initializers`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicax.tf._forward import forward

if TYPE_CHECKING:
    from keras.initializers import *

__getattr__, __dir__ = forward(__name__, "keras.initializers")
