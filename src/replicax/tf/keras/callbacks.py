"""`tf.keras.callbacks`: callbacks; where Keras' one needs TensorFlow, that of Replicax."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from replicax.tf._forward import forward

if TYPE_CHECKING:
    from keras.callbacks import *

    from replicax.callbacks import TensorBoard as TensorBoard
    from replicax.tf.keras._backup import BackupAndRestore as BackupAndRestore

_OURS = {
    "BackupAndRestore": "replicax.tf.keras._backup",
    "TensorBoard": "replicax.callbacks",
}

__getattr__, __dir__ = forward(__name__, "keras.callbacks", ours=_OURS)

# `tf.keras.callbacks.experimental.BackupAndRestore`.
experimental = sys.modules[__name__]
sys.modules[f"{__name__}.experimental"] = experimental
