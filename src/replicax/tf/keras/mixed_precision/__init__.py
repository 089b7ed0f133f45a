"""`tf.keras.mixed_precision`: computing in 16 bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicax.tf._forward import forward

if TYPE_CHECKING:
    from keras.mixed_precision import *

    from replicax.tf.keras.mixed_precision import experimental as experimental

__getattr__, __dir__ = forward(__name__, "keras.mixed_precision", modules=("experimental",))
