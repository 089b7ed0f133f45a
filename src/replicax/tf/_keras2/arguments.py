"""Arguments of Keras 2 that Keras 3 does not have, and what becomes of them; as data.

A class or method, then its arguments: `Renamed` to what Keras 3 calls them; `LeftOut`, if they have
one of some values or any, since Keras 3 decides this itself or does what they say; `Rounded`;
`Given`, which Keras 2 did not ask for; or `Taken`. Any other value goes to Keras, which refuses it.
`spellings.py` puts them into Keras; `replicax migrate` says what they are today.
"""

from __future__ import annotations

from typing import NamedTuple


class Renamed(NamedTuple):
    """An argument that has another name in Keras 3."""

    name: str


class LeftOut(NamedTuple):
    """An argument that is not handed on: with any value, or with one of these."""

    values: tuple[object, ...] = ()


class Given(NamedTuple):
    """An argument that has this value where a program does not give it."""

    value: object


class Rounded(NamedTuple):
    """A number of steps that may be a fraction, `examples / batch_size`: rounded up."""


class Taken(NamedTuple):
    """An argument that does what it did in Keras 2, by code of its own."""


Change = Renamed | LeftOut | Given | Rounded | Taken

_NONE = LeftOut((None,))
_READING = dict.fromkeys(("workers", "use_multiprocessing", "max_queue_size"), LeftOut())

ARGUMENTS: dict[str, dict[str, Change]] = {
    "Layer": {
        "fused": LeftOut(),  # XLA fuses
        "implementation": LeftOut(),
        "experimental_autocast": Renamed("autocast"),
        "dynamic": LeftOut((False, None)),
        "time_major": LeftOut((False, None)),
        "virtual_batch_size": _NONE,
        "adjustment": _NONE,
        "batch_input_shape": Taken(),
        "weights": Taken(),
    },
    "Layer.add_loss": {"losses": Renamed("loss"), "inputs": LeftOut()},
    "Layer.add_weight": {
        "experimental_autocast": Renamed("autocast"),
        "use_resource": LeftOut(),
        "collections": LeftOut(),
        "partitioner": _NONE,
    },
    **{f"AveragePooling{axes}D": {"pool_size": Given(2)} for axes in (1, 2, 3)},
    "Optimizer": {"lr": Renamed("learning_rate"), "decay": Taken(), "jit_compile": LeftOut()},
    "Model.compile": {
        "experimental_steps_per_execution": Renamed("steps_per_execution"),
        "experimental_run_tf_function": LeftOut(),
        "sample_weight_mode": _NONE,
        "target_tensors": _NONE,
        "distribute": _NONE,
    },
    "Model.fit": {
        **_READING,
        **dict.fromkeys(("epochs", "steps_per_epoch", "validation_steps"), Rounded()),
    },
    "Model.evaluate": {**_READING, "steps": Rounded()},
    "Model.predict": {**_READING, "steps": Rounded()},
    "Model.save_weights": {"save_format": LeftOut(), "options": LeftOut()},
    "Model.load_weights": {"options": LeftOut()},
    "ModelCheckpoint": {
        "period": Taken(),
        "options": LeftOut(),
        "save_format": LeftOut(),
        "load_weights_on_restart": LeftOut((False, None)),
    },
}

# What came first in `add_weight`, in its order.
ADD_WEIGHT = (
    "name", "shape", "dtype", "initializer", "regularizer", "trainable", "constraint",
    "use_resource", "synchronization", "aggregation",
)  # fmt: skip
ADD_WEIGHT_OF_A_METRIC = (
    "name", "shape", "aggregation", "synchronization", "initializer", "dtype",
)  # fmt: skip
