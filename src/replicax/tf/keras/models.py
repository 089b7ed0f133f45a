"""`tf.keras.models`: models, and how they are saved."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicax.tf._forward import forward

if TYPE_CHECKING:
    from keras.models import *

    from replicax.tf.keras.saving import load_model as load_model
    from replicax.tf.keras.saving import save_model as save_model

_OURS = dict.fromkeys(["load_model", "save_model"], "replicax.tf.keras.saving")

__getattr__, __dir__ = forward(__name__, "keras.models", ours=_OURS)
