"""`tf.data.experimental`: what has become methods since, as the functions that it was."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicax.tf._forward import forward

if TYPE_CHECKING:
    from replicax.data.experimental import *
    from replicax.tf._data import *

_OURS = (
    "Counter",
    "assert_cardinality",
    "choose_from_datasets",
    "copy_to_device",
    "enumerate_dataset",
    "get_single_element",
    "get_structure",
    "load",
    "map_and_batch",
    "parallel_interleave",
    "prefetch_to_device",
    "sample_from_datasets",
    "save",
    "scan",
    "shuffle_and_repeat",
    "take_while",
    "unbatch",
)
__getattr__, __dir__ = forward(
    __name__, "replicax.data.experimental", ours=dict.fromkeys(_OURS, "replicax.tf._data")
)
