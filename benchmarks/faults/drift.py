"""Workers that are not alike: in their state, from some step on, or in their kernels."""

from __future__ import annotations

import json
import logging
import os
import re
from functools import partial
from typing import TYPE_CHECKING

import keras
import numpy as np
from multi_process import drift

import replicax as rx
from faults.fault import Fault, Outcome
from replicax._cpu import kernels

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_WORKERS, _CULPRIT = 3, 1


def _train(change: Callable[..., None], when: dict[str, int]) -> tuple[list[str], str]:
    return drift.in_one_fit(_CULPRIT, change, **when)


def _drift(folder: Path, change: Callable[..., None], **when: int) -> Outcome:
    found = rx.launch.run(_train, _WORKERS, args=(change, when), devices_per_worker=1, timeout=120)
    differing, text = found[0]
    if not differing:
        return Outcome("trained on with different state", False)
    worker = re.search(r"worker (\d+)\.$", text, re.MULTILINE)
    variable = re.search(r"value of (\S+)", differing[0])
    named = [f"worker {worker[1]}" if worker else "", variable[1] if variable else ""]
    alike = all(one == found[0] for one in found)
    as_expected = alike and named[0] == f"worker {_CULPRIT}"
    said = "every worker raised the same error" if alike else "workers raised different errors"
    return Outcome(said, as_expected, None, ", ".join(filter(None, named)), "the run since then")


def _not_built() -> None:
    raise kernels.NoKernelsError("they were not built")


def _train_without_kernels(without: list[int]) -> tuple[list[np.ndarray], list[str]]:
    """The weights of a model whose layers and optimizer have kernels, and what was said."""
    if json.loads(os.environ["TF_CONFIG"])["task"]["index"] in without:
        kernels.load = _not_built

    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("replicax").addHandler(handler)
    strategy = rx.MultiWorkerMirroredStrategy()
    with strategy.scope():
        keras.utils.set_random_seed(0)
        words = keras.Input((16,), dtype="int32")
        x = keras.layers.Embedding(2000, 64)(words)
        x = keras.layers.MultiHeadAttention(4, 16)(x, x)
        x = keras.layers.Dense(64, activation="relu")(x)
        model = keras.Model(words, keras.layers.Dense(1)(x))
        model.compile(keras.optimizers.Adam(1e-3), "mse")
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 2000, (256, 16)), rng.normal(size=(256, 16, 1)).astype("float32")
    model.fit(x, y, batch_size=128, epochs=2, verbose=0)
    return model.get_weights(), [text for text in said if "parts of the tuning" in text]


def _no_kernels(folder: Path) -> Outcome:
    found = rx.launch.run(_train_without_kernels, 2, args=([1],), devices_per_worker=1, timeout=120)
    weights = [one for one, _ in found]
    alike = all(map(np.array_equal, *weights))
    said = [text for _, texts in found for text in texts]
    named = re.search(r"worker \d+", said[0]) if said else None
    as_expected = alike and len(said) == 1 and named is not None and named[0] == "worker 1"
    outcome = "both trained without kernels, to the same weights" if alike else "weights differ"
    return Outcome(outcome, as_expected, None, named[0] if named else "")


_IN_AN_EPOCH = {"step": 3}
_BETWEEN_EPOCHS = {"epoch": 0, "epochs": 2}
# By two workers; what three of them say is tested by one case.
_OF_TWO = "multi_process/test_drift.py::test_the_variable_is_named_on_both_workers"
# Other state that drifts: tests/multi_process/test_drift.py.
_CASES = (
    ("the learning rate within an epoch", drift.learning_rate, _IN_AN_EPOCH, ""),
    ("the seed of a dropout within an epoch", drift.seed, _IN_AN_EPOCH, _OF_TWO),
    ("the learning rate between epochs", drift.learning_rate, _BETWEEN_EPOCHS, _OF_TWO),
)
FAULTS = (
    *(
        Fault(
            "wrong numbers",
            f"A callback on one of three workers changes {what}",
            partial(_drift, change=change, **when),
            tested_by,
        )
        for what, change, when, tested_by in _CASES
    ),
    Fault("wrong numbers", "One of two workers has no kernels for CPUs", _no_kernels),
)
