"""`tf.keras.export`: models for serving; the names of `keras.export`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicax.tf._forward import forward

if TYPE_CHECKING:
    from keras.export import *

__getattr__, __dir__ = forward(__name__, "keras.export")
