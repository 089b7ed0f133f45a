"""`tf.keras.optimizers`: optimizers and schedules; `legacy` and `experimental` are the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicax.tf._forward import forward

if TYPE_CHECKING:
    from keras.optimizers import *

    from replicax.tf.keras.optimizers import experimental as experimental
    from replicax.tf.keras.optimizers import legacy as legacy
    from replicax.tf.keras.optimizers import schedules as schedules

_MODULES = ("experimental", "legacy", "schedules")

__getattr__, __dir__ = forward(__name__, "keras.optimizers", modules=_MODULES)
