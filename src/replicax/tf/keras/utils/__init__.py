"""`tf.keras.utils`: helpers; data sets of folders are those of Replicax."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicax.tf._forward import forward

if TYPE_CHECKING:
    from keras.utils import *

    from replicax.data import image_dataset_from_directory as image_dataset_from_directory
    from replicax.data import text_dataset_from_directory as text_dataset_from_directory
    from replicax.data import timeseries_dataset_from_array as timeseries_dataset_from_array
    from replicax.tf.keras.utils import experimental as experimental

_DATA_SETS = [
    "image_dataset_from_directory",
    "text_dataset_from_directory",
    "timeseries_dataset_from_array",
]

__getattr__, __dir__ = forward(
    __name__,
    "keras.utils",
    modules=("experimental",),
    ours=dict.fromkeys(_DATA_SETS, "replicax.data"),
)
