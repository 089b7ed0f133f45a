"""`tf.keras.preprocessing`: data sets of folders, and the older helpers for images and texts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicax.tf._forward import forward

if TYPE_CHECKING:
    from replicax.data import image_dataset_from_directory as image_dataset_from_directory
    from replicax.data import text_dataset_from_directory as text_dataset_from_directory
    from replicax.data import timeseries_dataset_from_array as timeseries_dataset_from_array
    from replicax.tf.keras.preprocessing import image as image
    from replicax.tf.keras.preprocessing import sequence as sequence
    from replicax.tf.keras.preprocessing import text as text

_DATA_SETS = [
    "image_dataset_from_directory",
    "text_dataset_from_directory",
    "timeseries_dataset_from_array",
]

__getattr__, __dir__ = forward(
    __name__,
    "replicax.tf.keras.utils",
    modules=("image", "sequence", "text"),
    ours=dict.fromkeys(_DATA_SETS, "replicax.data"),
)
