"""`tf.keras.optimizers.schedules`: learning rates by the step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicax.tf._forward import forward

if TYPE_CHECKING:
    from keras.optimizers.schedules import *

__getattr__, __dir__ = forward(__name__, "keras.optimizers.schedules")
