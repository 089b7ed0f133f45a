"""Training curves for TensorBoard, without TensorFlow.

Keras' own `TensorBoard` callback imports TensorFlow to write its files; this one writes the same
scalars with the `tensorboard` package. Profiles, histograms and images are not its concern.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import keras

from replicax._core.errors import UsageError
from replicax._keras import _compat, workers


class TensorBoard(keras.callbacks.Callback):
    """Write losses, metrics and the learning rate where `tensorboard --logdir` finds them.

    Files and names are those of Keras' callback: `train/` and `validation/` below `log_dir`,
    `epoch_loss`, `epoch_accuracy`, … per epoch, `batch_loss`, … per batch.

    Args:
        log_dir: The folder to write to; a new run wants a new folder.
        update_freq: `"epoch"`, or a number of batches after which batch scalars are written
            too. Writing a batch's scalars waits for its step.

    Raises:
        UsageError: If the `tensorboard` package is missing, or `update_freq` is neither.

    Example:
        >>> import replicax as rx
        >>> callback = rx.callbacks.TensorBoard("logs/run-1")
    """

    writes_below = "log_dir"

    def __init__(self, log_dir: str | Path = "logs", update_freq: str | int = "epoch") -> None:
        super().__init__()
        if update_freq != "epoch" and not (isinstance(update_freq, int) and update_freq > 0):
            raise UsageError(
                "Scalars are written per epoch or after a number of batches. Received: "
                f"update_freq={update_freq!r}. That is neither. Use 'epoch' or a positive integer."
            )
        self.log_dir = Path(log_dir)
        self.update_freq = update_freq
        self._make_writer = _writer_class()
        self._writers: dict[str, Any] = {}
        self._seen_batches = 0

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._seen_batches += 1
        if isinstance(self.update_freq, int) and self._seen_batches % self.update_freq == 0:
            self._write("train", "batch_", logs or {}, self._seen_batches)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        logs = dict(logs or {})
        validation = {name[4:]: logs.pop(name) for name in list(logs) if name.startswith("val_")}
        model: Any = self.model
        rate = getattr(model.optimizer, "learning_rate", None)
        if rate is not None:
            logs["learning_rate"] = rate
        self._write("train", "epoch_", logs, epoch)
        self._write("validation", "epoch_", validation, epoch)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        for writer in self._writers.values():
            writer.close()
        self._writers.clear()

    def _write(self, run: str, prefix: str, values: dict[str, Any], step: int) -> None:
        if not values or not workers.channel_of(_compat.model_of(self)).is_chief:
            return
        if run not in self._writers:
            self._writers[run] = self._make_writer(str(self.log_dir / run))
        for name, value in values.items():
            self._writers[run].add_scalar(f"{prefix}{name}", float(value), step=step)
        self._writers[run].flush()


def _writer_class() -> Any:
    try:
        return importlib.import_module("tensorboard.summary").Writer
    except ImportError as error:
        raise UsageError(
            "The callback writes with the `tensorboard` package. Received: an environment "
            "without it. It is an optional dependency. Run `pip install 'replicax[tensorboard]'`."
        ) from error
