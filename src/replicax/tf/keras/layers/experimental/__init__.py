"""`tf.keras.layers.experimental`: layers that have become ordinary ones since."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicax.tf._forward import forward

if TYPE_CHECKING:
    from keras.layers import EinsumDense as EinsumDense

    from replicax.tf.keras.layers.experimental import preprocessing as preprocessing

__getattr__, __dir__ = forward(__name__, "replicax.tf.keras.layers", modules=("preprocessing",))
