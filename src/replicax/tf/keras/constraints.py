"""`tf.keras.constraints`: constraints of weights; the names of `keras.constraints`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicax.tf._forward import forward

if TYPE_CHECKING:
    from keras.constraints import *

__getattr__, __dir__ = forward(__name__, "keras.constraints")
