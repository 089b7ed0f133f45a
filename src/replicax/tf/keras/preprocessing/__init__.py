"""`tf.keras.preprocessing`: data sets of folders, and the older helpers for images and texts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicax.tf._forward import forward

if TYPE_CHECKING:
    from replicax.data import image_dataset_from_directory as image_dataset_from_directory
    from replicax.data import text_dataset_from_directory as text_dataset_from_directory
    from replicax.tf.keras.preprocessing import image as image
    from replicax.tf.keras.preprocessing import sequence as sequence
    from replicax.tf.keras.preprocessing import text as text

_FOLDERS = ["image_dataset_from_directory", "text_dataset_from_directory"]

__getattr__, __dir__ = forward(
    __name__,
    "replicax.tf.keras.utils",
    modules=("image", "sequence", "text"),
    ours=dict.fromkeys(_FOLDERS, "replicax.data"),
)
