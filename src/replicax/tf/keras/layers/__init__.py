"""`tf.keras.layers`: layers; those for text, which Keras has for TensorFlow only, are Replicax'."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicax.tf._forward import forward

if TYPE_CHECKING:
    from keras.layers import *

    from replicax.layers import Discretization as Discretization
    from replicax.layers import HashedCrossing as HashedCrossing
    from replicax.layers import Hashing as Hashing
    from replicax.layers import IntegerLookup as IntegerLookup
    from replicax.layers import StringLookup as StringLookup
    from replicax.layers import TextVectorization as TextVectorization
    from replicax.tf.keras.layers import experimental as experimental

_OURS = dict.fromkeys(
    [
        "Discretization",
        "HashedCrossing",
        "Hashing",
        "IntegerLookup",
        "StringLookup",
        "TextVectorization",
    ],
    "replicax.layers",
)

__getattr__, __dir__ = forward(__name__, "keras.layers", modules=("experimental",), ours=_OURS)
