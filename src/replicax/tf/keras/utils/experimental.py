"""`tf.keras.utils.experimental`: `DatasetCreator`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicax.tf._forward import forward

if TYPE_CHECKING:
    from replicax import DatasetCreator as DatasetCreator

__getattr__, __dir__ = forward(
    __name__, "replicax.tf.keras.utils", ours={"DatasetCreator": "replicax"}
)
