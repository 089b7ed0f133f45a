"""`tf.data`: the pipelines of `replicax.data`, the same objects as there.

Where `replicax.tf` is imported, a loop over any data set gets arrays, numbers and texts that have
`numpy()`; functions of `map` and `as_numpy_iterator` get plain ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicax.tf._lazy import lazily

if TYPE_CHECKING:
    from replicax.data import AUTOTUNE as AUTOTUNE
    from replicax.data import INFINITE_CARDINALITY as INFINITE_CARDINALITY
    from replicax.data import UNKNOWN_CARDINALITY as UNKNOWN_CARDINALITY
    from replicax.data import ArraySpec as DatasetSpec  # noqa: F401
    from replicax.data import Dataset as Dataset
    from replicax.data import DatasetIterator as Iterator  # noqa: F401
    from replicax.data import Options as Options
    from replicax.data import TextLineDataset as TextLineDataset
    from replicax.data import TFRecordDataset as TFRecordDataset
    from replicax.data import ThreadingOptions as ThreadingOptions
    from replicax.tf.data import experimental as experimental

_HOMES = {
    "AUTOTUNE": "replicax.data",
    "Dataset": "replicax.data",
    "DatasetSpec": "replicax.data:ArraySpec",
    "INFINITE_CARDINALITY": "replicax.data",
    "Iterator": "replicax.data:DatasetIterator",
    "IteratorSpec": "replicax.data:ArraySpec",
    "Options": "replicax.data",
    "TFRecordDataset": "replicax.data",
    "TextLineDataset": "replicax.data",
    "ThreadingOptions": "replicax.data",
    "UNKNOWN_CARDINALITY": "replicax.data",
    "experimental": "replicax.tf.data.experimental",
}

__getattr__, __dir__ = lazily("tf.data", _HOMES)
