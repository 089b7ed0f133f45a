"""`tf.keras.quantizers`: quantization; the names of `keras.quantizers`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicax.tf._forward import forward

if TYPE_CHECKING:
    from keras.quantizers import *

__getattr__, __dir__ = forward(__name__, "keras.quantizers")
