"""What a program or a data set's owner sets is used or refused; a file that nobody can parse."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from formatted_rows import some_rows

import replicax.tf as tf
from faults.fault import Fault, Outcome
from replicax._core.errors import UsageError
from replicax.data import Dataset
from replicax.testing import virtual_devices

if TYPE_CHECKING:
    from collections.abc import Callable

    from formatted_rows import Rows

_SUMS = {"sum": 5.0, "mean": 3.5, "only_first_replica": 3.0}  # TensorFlow's, of 2 + (1, 2)


def _made(base: Callable[[], type], hook: str) -> Callable[[Path], Outcome]:
    def try_it(folder: Path) -> Outcome:
        try:
            type("Mine", (base(),), {hook: lambda self, *args: None})
        except UsageError as error:
            named = re.search(r"Mine\.(\w+)", str(error))
            said = "refused when the class is made"
            return Outcome(said, named is not None and named[1] == hook, named=named[1])
        return Outcome("made, and does what it inherits", False)

    return try_it


def _mirrored() -> tf.distribute.Strategy:
    virtual_devices(2)
    return tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])


def _returned(folder: Path) -> Outcome:
    strategy, wrong = _mirrored(), []
    for aggregation, expected in _SUMS.items():
        with strategy.scope():
            variable = tf.Variable([2.0], trainable=False, aggregation=aggregation)

        def add(variable: tf.Variable = variable) -> object:
            own = tf.distribute.get_replica_context().replica_id_in_sync_group + 1.0
            return variable.scatter_add(tf.IndexedSlices(tf.fill([1], own), tf.constant([0])))

        found = [float(v[0]) for v in strategy.experimental_local_results(strategy.run(add))]
        if set(found) != {expected}:
            wrong.append(aggregation)
    if wrong:
        return Outcome(f"other values than TensorFlow's: {', '.join(wrong)}", False)
    return Outcome("TensorFlow's values on each replica", True)


def _on_read(folder: Path) -> Outcome:
    with _mirrored().scope():
        variable = tf.Variable(1.0, synchronization="on_read", aggregation="sum")
    value = float(variable.numpy())
    return Outcome(f"reads {value:g} on two replicas, as in TensorFlow", value == 2.0)


def _distributed(rows: Rows, expected: dict[str, list[float]]) -> Callable[[Path], Outcome]:
    def try_it(folder: Path) -> Outcome:
        dataset = Dataset.from_source(rows).batch(2)
        (batch, *_) = _mirrored().experimental_distribute_dataset(dataset)
        parts = {name: _mirrored().experimental_local_results(v) for name, v in batch.items()}
        found = {name: np.concatenate(part).tolist() for name, part in parts.items()}
        same = found == expected
        return Outcome("kept" if same else f"lost: {sorted(found)}", same)

    return try_it


def _migrate(name: str, text: str) -> Callable[[Path], Outcome]:
    def try_it(folder: Path) -> Outcome:
        (folder / name).write_text(text)
        (folder / "good.py").write_text("import tensorflow as tf\n")
        command = [Path(sys.executable).with_name("replicax"), "migrate", folder, "--write"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=100)
        good = (folder / "good.py").read_text() == "import replicax.tf as tf\n"
        named = name if name in done.stderr and "Traceback" not in done.stderr else ""
        others = "the others are rewritten" if good else "the others are not rewritten"
        said = f"exit code {done.returncode}; {others}"
        return Outcome(said, good and bool(named) and done.returncode == 1, named=named)

    return try_it


_HEAD = "import tensorflow as tf\nx = "
FAULTS = (
    Fault(
        "wrong numbers",
        "An optimizer overrides _resource_apply_dense, which Keras 3 never calls",
        _made(lambda: tf.keras.optimizers.legacy.Adam, "_resource_apply_dense"),
    ),
    Fault(
        "wrong numbers",
        "Cross-device operations override reduce_implementation, which nobody calls",
        _made(lambda: tf.distribute.CrossDeviceOps, "reduce_implementation"),
    ),
    Fault(
        "wrong numbers",
        "A program uses what scatter_add returns in run, by each aggregation",
        _returned,
    ),
    Fault("wrong numbers", "An on-read variable that is summed begins with 1", _on_read),
    Fault(
        "wrong numbers",
        "A Hugging Face data set with a transform is distributed",
        _distributed(
            some_rows().with_transform(lambda batch: {"twice": [2 * n for n in batch["n"]]}),
            {"twice": [2, 4]},
        ),
    ),
    Fault(
        "wrong numbers",
        "A Hugging Face data set with chosen columns is distributed",
        _distributed(some_rows().with_format(columns=["n"]), {"n": [1, 2]}),
    ),
    Fault(
        "files",
        "A script to migrate nests 100,000 brackets",
        _migrate("brackets.py", f"{_HEAD}{'[' * 100_000}{']' * 100_000}"),
    ),
    Fault(
        "files",
        "A script to migrate has an expression of 20,000 terms",
        _migrate("terms.py", _HEAD + " + ".join("1" * 20_000)),
    ),
)
