"""`tf.keras.metrics`: metrics; the names of `keras.metrics`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicax.tf._forward import forward
from replicax.tf.keras._short_names import SHORT_NAMES

if TYPE_CHECKING:
    from keras.metrics import *

__getattr__, __dir__ = forward(__name__, "keras.metrics", ours=SHORT_NAMES)
