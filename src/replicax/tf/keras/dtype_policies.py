"""`tf.keras.dtype_policies`: types that layers compute with; as `keras.dtype_policies`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicax.tf._forward import forward

if TYPE_CHECKING:
    from keras.dtype_policies import *

__getattr__, __dir__ = forward(__name__, "keras.dtype_policies")
