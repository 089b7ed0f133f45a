"""`tf.train`: folders of checkpoints, messages of TFRecord files, averages of variables."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, final

import jax.numpy as jnp

import replicax as rx
from replicax.tf._files import GFile, exists, isdir

if TYPE_CHECKING:
    from collections.abc import Sequence

MESSAGES = (
    *("BytesList", "Example", "Feature", "FeatureList", "FeatureLists", "Features", "FloatList"),
    *("Int64List", "SequenceExample"),
)


def __getattr__(name: str) -> Any:
    if name not in MESSAGES:
        raise AttributeError(name)
    from replicax.data._formats.example import message_class

    return message_class(name)


class Checkpoint(rx.train.Checkpoint):
    """`rx.train.Checkpoint`, whose `save` also writes the file `checkpoint` beside.

    Programs look for this file before they restore. It does not say which checkpoint is the latest.

    Example:
        >>> import os, tempfile
        >>> import replicax.tf as tf
        >>> folder = tempfile.mkdtemp()
        >>> path = tf.train.Checkpoint(step=tf.Variable(3)).save(f"{folder}/ckpt")
        >>> os.path.exists(f"{folder}/checkpoint"), path == tf.train.latest_checkpoint(folder)
        (True, True)
    """

    def saved(self, path: str) -> None:
        folder, name = os.path.split(path)
        state = os.path.join(folder, "checkpoint")
        if exists(state):
            if isdir(state):
                return
            with GFile(state, "rb") as file:
                said = file.read()
            # One line is ours; TensorFlow's own lists its checkpoints, and others begin otherwise.
            if not said.startswith(b"model_checkpoint_path:") or said.count(b"\n") > 1:
                return
        with GFile(state, "w") as file:
            file.write(f'model_checkpoint_path: "{name}"\n')


def latest_checkpoint(
    checkpoint_dir: str | os.PathLike[str], latest_filename: str | None = None
) -> str | None:
    """The path of the newest checkpoint in a folder, or None.

    **Differs from TF:** it is the one with the highest number; no file says so, and
    `latest_filename` has no effect. Without any, it is the newest file of Keras weights, which
    `ModelCheckpoint` writes and `load_weights` reads.
    """
    from replicax.train import latest_checkpoint as latest

    found = latest(checkpoint_dir)
    if found is not None:
        return found
    files = [*Path(checkpoint_dir).glob("*.weights.h5"), *Path(checkpoint_dir).glob("*.keras")]
    newest = max(files, key=_age, default=None)
    return None if newest is None else str(newest)


def _age(file: Path) -> tuple[int, list[int]]:
    """When a file was written, and the numbers in its name, for clocks that are coarse."""
    return file.stat().st_mtime_ns, [int(digits) for digits in re.findall(r"\d+", file.name)]


class CheckpointState(NamedTuple):
    """What a folder of checkpoints holds, as `get_checkpoint_state` says."""

    model_checkpoint_path: str
    all_model_checkpoint_paths: list[str]


def get_checkpoint_state(
    checkpoint_dir: str | os.PathLike[str], latest_filename: str | None = None
) -> CheckpointState | None:
    """The newest checkpoint of a folder and all of them, oldest first; None without any."""
    from replicax.train import all_checkpoints

    found = all_checkpoints(checkpoint_dir)
    return CheckpointState(found[-1], found) if found else None


@final
class ExponentialMovingAverage:
    """Keeps a moving average of variables, each in a variable of its own.

    **Differs from TF:** `zero_debias` says nothing: there as well it is of tensors of graphs only.

    Example:
        >>> import replicax.tf as tf
        >>> v, ema = tf.Variable(0.0), tf.train.ExponentialMovingAverage(0.75)
        >>> ema.apply([v])
        >>> _ = v.assign(4.0)
        >>> ema.apply([v])
        >>> float(ema.average(v).numpy())
        1.0
    """

    def __init__(
        self,
        decay: Any,
        num_updates: Any = None,
        zero_debias: bool = False,
        name: str = "ExponentialMovingAverage",
    ) -> None:
        self.name = name
        self._decay, self._num_updates = decay, num_updates
        self._averages: dict[int, tuple[Any, Any]] = {}

    def apply(self, var_list: Sequence[Any]) -> None:
        """Update the averages; averages of new variables begin with their values."""
        decay = jnp.asarray(self._decay, "float32")
        if self._num_updates is not None:
            count = jnp.asarray(self._num_updates).astype("float32")
            decay = jnp.minimum(decay, (1 + count) / (10 + count))
        for variable in var_list:
            average = self._average_of(variable)
            rest = (1 - decay).astype(average.dtype)
            average.assign_sub((average - jnp.asarray(variable, average.dtype)) * rest)

    def _average_of(self, variable: Any) -> Any:
        if id(variable) not in self._averages:
            made = rx.Variable(
                lambda: jnp.array(variable),
                trainable=False,
                name=self.average_name(variable).replace("/", "_"),
                aggregation=rx.VariableAggregation.MEAN,
            )
            self._averages[id(variable)] = variable, made
        return self._averages[id(variable)][1]

    def average(self, var: Any) -> Any:
        """The variable that holds the average; None before `apply`."""
        return self._averages.get(id(var), (None, None))[1]

    def average_name(self, var: Any) -> str:
        """What the average is called."""
        return f"{var.path}/{self.name}"

    def variables_to_restore(self, moving_avg_variables: Any = None) -> dict[str, Any]:
        """Where to load averages into: the variables themselves, by the names of the averages."""
        known = [variable for variable, _ in self._averages.values()]
        chosen = known if moving_avg_variables is None else moving_avg_variables
        return {self.average_name(variable): variable for variable in chosen}
