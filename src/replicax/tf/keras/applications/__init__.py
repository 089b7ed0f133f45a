"""`tf.keras.applications`: well-known models; the names of `keras.applications`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicax.tf._forward import forward, same_modules

if TYPE_CHECKING:
    from keras.applications import *

__getattr__, __dir__ = forward(__name__, "keras.applications")
same_modules(__name__, "keras.applications")
