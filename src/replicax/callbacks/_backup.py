"""A Keras callback by which `fit` goes on where it was ended, in the middle of an epoch."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, final

import keras
import numpy as np

from replicax._core.errors import UsageError
from replicax._fit.epochs import EpochWatch
from replicax._fit.hooks import install_hooks
from replicax._keras import _compat, workers
from replicax.experimental._notice import Notice, announce
from replicax.experimental._termination import exit_for_restart
from replicax.train import Checkpoint, CheckpointManager, Value

if TYPE_CHECKING:
    from replicax._control import Channel


class BackupAndRestore(keras.callbacks.Callback):
    """Let `fit` go on after a restart, with the numbers of a run that was never ended.

    Saved are weights, optimizer, seeds, the metrics so far, the history, the epoch and batch,
    and the place in the data: after each epoch, every few batches, and when SIGTERM asks the
    program to end. On the same devices the restarted run gives the same numbers, bit for bit.
    It is called before other callbacks, wherever it stands in the list. The last two backups stay:
    a damaged one is named, and the one before it is used; if both are, `fit` refuses to begin.

    **Differs from Keras:** Keras' callback of this name restarts the epoch that was ended, with
    weights from within it, and another order of the data.

    Args:
        directory: The folder for the backup; nothing else should be in it.
        every_batches: Save after this many batches, too.
        save_before_preemption: Save when this or another worker is told to end, after the
            batch in progress, and exit with code 42.
        delete_checkpoint: Remove the folder when training is done.
        termination_watcher_fn: Says whether this process will have to end; by default, SIGTERM.
        exit_fn: Called after the save before the end, in place of an exit with code 42.

    Raises:
        UsageError: If `every_batches` is not positive.

    Example:
        >>> import replicax as rx
        >>> callback = rx.callbacks.BackupAndRestore("backup", every_batches=100)
    """

    comes_first = True
    writes_below = "directory"

    def __init__(
        self,
        directory: str | os.PathLike[str],
        every_batches: int | None = None,
        *,
        save_before_preemption: bool = True,
        delete_checkpoint: bool = True,
        termination_watcher_fn: Callable[[], Any] | None = None,
        exit_fn: Callable[[], Any] | None = None,
    ) -> None:
        super().__init__()
        if every_batches is not None and every_batches < 1:
            raise UsageError(
                "`every_batches` says how often a backup is made, at least every batch. Received: "
                f"{every_batches}. Nobody trains less than one batch. Leave it out to save after "
                "each epoch only."
            )
        install_hooks()
        self.directory = os.fspath(directory)
        self._every = every_batches
        self._saves_at_end = save_before_preemption
        self._deletes = delete_checkpoint
        self._watcher_fn = termination_watcher_fn
        self._exit_fn = exit_fn or exit_for_restart
        self._notice: Notice | None = None
        self._last_batch = 0
        self._first_epoch: int | None = None
        self._history: dict[str, Any] | None = None

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        model: Any = self.model
        self._watch = EpochWatch(_compat.epochs_of(model))
        _compat.at_end_of_fit(model, self._close)
        self._place = Value()
        self._channel = workers.channel_of(model)
        self._position = _Position(lambda: self._watch.position, self._channel)
        checkpoint = Checkpoint(
            model=model,
            metrics=_Metrics(model),
            place=self._place,
            position=self._position,
        )
        checkpoint.among(self._channel)
        self._manager = CheckpointManager(checkpoint, self.directory, max_to_keep=2)
        self._first_epoch = self._history = None
        if self._manager.restore_or_initialize() is not None:
            self._go_on()
        if self._saves_at_end:
            self._notice = Notice(self._watcher_fn)
            self._notice.begin()

    def _go_on(self) -> None:
        place: Any = self._place.value
        model: Any = self.model
        _compat.begin_at(model, place["epoch"])
        self._history = place["history"]
        # Until other callbacks have begun the epoch, which may set a learning rate: then the
        # values once more, of which the metrics are reset, too.
        kept = [(v, np.array(v.value)) for v in _variables(model)] if place["batch"] else []

        def put_back() -> None:
            for variable, value in kept:
                variable.assign(value)

        self._watch.go_to(place["data"], self._position.restored, put_back)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        self._restore_history()
        is_first = self._first_epoch is None
        if is_first:
            self._first_epoch = epoch
        self._epoch, self._last_batch = epoch, 0
        if is_first and self._place.value is not None:
            place: Any = self._place.value
            self._last_batch = place["batch"]
        if not is_first:
            # Here, not at the end of the epoch before: other callbacks had their say.
            self._save_or_exit(0)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._save_or_exit(batch + 1)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        self._restore_history()
        self._close()
        if not self._deletes:
            params: Any = self.params
            self._epoch = int(params["epochs"])
            self._save(0)
            return
        self._channel.barrier("backup")
        if self._channel.is_chief:
            shutil.rmtree(self.directory, ignore_errors=True)

    def _save_or_exit(self, batch: int) -> None:
        told = self._notice is not None and self._notice.received
        ends = self._saves_at_end and self._channel.any("backup", told)
        if batch and self._watch.ends_with(batch):
            return  # Keras cannot begin behind the last batch: at the begin of the next epoch
        is_due = not batch or (self._every and batch - self._last_batch >= self._every)
        if ends or is_due:
            self._last_batch = batch
            self._save(batch)
        if ends:
            announce(f"A worker will have to end. Saved in epoch {self._epoch}, batch {batch}.")
            self._close()
            self._exit_fn()

    def _save(self, batch: int) -> None:
        model: Any = self.model
        model.jax_state_sync()
        history = model.history
        self._place.value = {
            "epoch": self._epoch,
            "batch": batch,
            "data": self._watch.place(batch),
            "history": {
                "epoch": list(history.epoch),
                "history": {name: list(map(float, v)) for name, v in history.history.items()},
            },
        }
        self._manager.save()

    def _restore_history(self) -> None:
        if self._history is not None:
            model: Any = self.model
            history = model.history
            history.epoch[:] = self._history["epoch"]
            history.history.update(self._history["history"])
            self._history = None

    def _close(self) -> None:
        _compat.begin_at(_compat.model_of(self), None)  # the next `fit` begins where it is told
        if self._notice is not None:
            self._notice.close()
            self._notice = None


@final
class _Metrics:
    """The variables of a compiled model's metrics."""

    def __init__(self, model: Any) -> None:
        self._model = model

    @property
    def variables(self) -> list[Any]:
        return self._model.metrics_variables


@final
class _Position:
    """Where each worker's pass over the data began."""

    states_of_all = True

    def __init__(self, current: Callable[[], Any], channel: Channel) -> None:
        self.get_state = current
        self._channel = channel
        self.restored: Any = None

    def set_state(self, states: list[Any]) -> None:
        position = states[0]
        if isinstance(position, dict) and "workers" in position:
            position = states  # of a distributed data set, which takes those of all workers
        elif len(states) == self._channel.size:
            position = states[self._channel.index]
        self.restored = position


def _variables(model: Any) -> list[Any]:
    return [*model.variables, *model.optimizer.variables, *model.metrics_variables]
