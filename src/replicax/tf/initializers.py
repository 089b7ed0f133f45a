"""`tf.initializers`: how weights begin; the same as `tf.keras.initializers`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicax.tf._forward import forward

if TYPE_CHECKING:
    from replicax.tf.keras.initializers import *

__getattr__, __dir__ = forward(__name__, "replicax.tf.keras.initializers")
