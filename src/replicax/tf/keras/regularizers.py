"""`tf.keras.regularizers`: regularizers; the names of `keras.regularizers`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicax.tf._forward import forward

if TYPE_CHECKING:
    from keras.regularizers import *

__getattr__, __dir__ = forward(__name__, "keras.regularizers")
