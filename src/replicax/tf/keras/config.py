"""`tf.keras.config`: floatx, epsilon and the backend's settings; the names of `keras.config`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicax.tf._forward import forward

if TYPE_CHECKING:
    from keras.config import *

__getattr__, __dir__ = forward(__name__, "keras.config")
