"""`tf.keras.layers.experimental.preprocessing`: the older place of preprocessing layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicax.tf._forward import forward

if TYPE_CHECKING:
    from replicax.tf.keras.layers import *

__getattr__, __dir__ = forward(__name__, "replicax.tf.keras.layers")
