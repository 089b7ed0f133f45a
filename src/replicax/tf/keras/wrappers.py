"""`tf.keras.wrappers`: models for scikit-learn; the names of `keras.wrappers`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicax.tf._forward import forward

if TYPE_CHECKING:
    from keras.wrappers import *

__getattr__, __dir__ = forward(__name__, "keras.wrappers")
