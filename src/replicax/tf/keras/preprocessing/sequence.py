"""`tf.keras.preprocessing.sequence`: sequences of one length."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicax.tf._forward import forward

if TYPE_CHECKING:
    from keras.preprocessing.sequence import *

    from replicax.tf._older.older_preprocessing import TimeseriesGenerator as TimeseriesGenerator

_OURS = dict.fromkeys(["TimeseriesGenerator"], "replicax.tf._older.older_preprocessing")

__getattr__, __dir__ = forward(__name__, "keras.preprocessing.sequence", ours=_OURS)
