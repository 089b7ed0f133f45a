"""`tf.losses`: losses; the same as `tf.keras.losses`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicax.tf._forward import forward

if TYPE_CHECKING:
    from replicax.tf.keras.losses import *

__getattr__, __dir__ = forward(__name__, "replicax.tf.keras.losses")
