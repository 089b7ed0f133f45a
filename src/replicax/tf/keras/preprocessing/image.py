"""`tf.keras.preprocessing.image`: helpers for images."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicax.tf._forward import forward

if TYPE_CHECKING:
    from keras.preprocessing.image import *

    from replicax.tf._older.older_preprocessing import DirectoryIterator as DirectoryIterator
    from replicax.tf._older.older_preprocessing import ImageDataGenerator as ImageDataGenerator
    from replicax.tf._older.older_preprocessing import Iterator as Iterator
    from replicax.tf._older.older_preprocessing import NumpyArrayIterator as NumpyArrayIterator

_OURS = dict.fromkeys(
    ["DirectoryIterator", "ImageDataGenerator", "Iterator", "NumpyArrayIterator"],
    "replicax.tf._older.older_preprocessing",
)

__getattr__, __dir__ = forward(__name__, "keras.preprocessing.image", ours=_OURS)
