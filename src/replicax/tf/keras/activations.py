"""`tf.keras.activations`: activation functions; the names of `keras.activations`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicax.tf._forward import forward

if TYPE_CHECKING:
    from keras.activations import *

__getattr__, __dir__ = forward(__name__, "keras.activations")
