"""`tf.keras.experimental`: what became of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicax.tf._forward import forward

if TYPE_CHECKING:
    from keras.optimizers.schedules import *

# The schedules once lived here, as `CosineDecay`; the rest is gone.
__getattr__, __dir__ = forward(__name__, "keras.optimizers.schedules")
