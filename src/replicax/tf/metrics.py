"""`tf.metrics`: metrics; the same as `tf.keras.metrics`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicax.tf._forward import forward

if TYPE_CHECKING:
    from replicax.tf.keras.metrics import *

__getattr__, __dir__ = forward(__name__, "replicax.tf.keras.metrics")
