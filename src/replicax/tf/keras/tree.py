"""`tf.keras.tree`: nests; the names of `keras.tree`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicax.tf._forward import forward

if TYPE_CHECKING:
    from keras.tree import *

__getattr__, __dir__ = forward(__name__, "keras.tree")
