"""`tf.data`: the pipelines of `replicax.data`.

The same objects as there. Since programs that ask here want tensors, a loop over any data set then
gets arrays with `numpy()` (`replicax.data._yielded`); functions of `map` get plain arrays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from replicax.tf._forward import forward

if TYPE_CHECKING:
    from replicax.data import *
    from replicax.data import ArraySpec as DatasetSpec
    from replicax.data import Dataset as Dataset
    from replicax.data import DatasetIterator as Iterator
    from replicax.tf.data import experimental as experimental

# Of `rx.data`, what TensorFlow has elsewhere or not at all is not handed on.
_NAMES = (
    "AUTOTUNE",
    "Dataset",
    "INFINITE_CARDINALITY",
    "Options",
    "TFRecordDataset",
    "TextLineDataset",
    "ThreadingOptions",
    "UNKNOWN_CARDINALITY",
)

_get, _ = forward(
    __name__,
    "replicax.tf.data._names",
    modules=("experimental",),
    ours=dict.fromkeys(_NAMES, "replicax.data"),
)


def __getattr__(name: str) -> Any:
    found = _get(name)
    if not name.startswith("_"):
        from replicax.data._yielded import yield_host_tensors

        yield_host_tensors()
    return found


def __dir__() -> list[str]:
    return sorted({*_NAMES, "DatasetSpec", "Iterator", "IteratorSpec", "experimental"})
