"""`tf.keras.datasets`: small data sets, downloaded by Keras; the names of `keras.datasets`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicax.tf._forward import forward, same_modules

if TYPE_CHECKING:
    from keras.datasets import *

__getattr__, __dir__ = forward(__name__, "keras.datasets")
same_modules(__name__, "keras.datasets")
