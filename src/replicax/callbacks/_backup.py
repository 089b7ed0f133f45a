"""A Keras callback with which `fit` resumes where it was ended, in the middle of an epoch.

At the start of an epoch, Keras draws the order of arrays from NumPy's random numbers, and the order
of a `PyDataset` from Python's. So a place in the data is the state of both generators at that
moment, and the number of batches to skip.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, final

import keras
import numpy as np

from replicax._core.errors import UsageError, checks_types
from replicax._fit.data import HostAdapter
from replicax._fit.trainer import install_hooks
from replicax._keras import _compat, workers
from replicax.experimental._preemption import Notice, announce, exit_for_restart
from replicax.train import Checkpoint, CheckpointManager, Value
from replicax.train._files import remove_tree

if TYPE_CHECKING:
    from replicax._core.channel import Channel


@checks_types
class BackupAndRestore(keras.callbacks.Callback):
    """Resume `fit` after a restart, with the results of an uninterrupted run.

    It saves weights, optimizer, seeds, the metrics so far, the history, the epoch and batch, and
    the place in the data: after each epoch, every few batches, and when SIGTERM asks the program
    to end. On the same devices the restarted run has the same results, bit for bit. It is called
    before other callbacks, wherever it is in the list. It keeps the last two backups: if the last
    one is damaged, a warning names it and `fit` uses the one before; if both are damaged, `fit`
    raises an error.

    **Differs from Keras:** Keras' callback of this name restarts the interrupted epoch from its
    beginning, with weights from the middle of it and another order of the data.

    Args:
        directory: The folder for the backup; it should hold nothing else.
        every_batches: Also save after this many batches.
        save_before_preemption: Whether to save when this or another worker has to end, after the
            current batch, and exit with code 42.
        delete_checkpoint: Whether to remove the folder when training is done.
        termination_watcher_fn: Returns whether this process has to end; by default, after SIGTERM.
        exit_fn: Called after the last save, instead of exiting with code 42.

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
            raise UsageError.of(
                "every_batches",
                "at least 1",
                every_batches,
                "Leave it out to save after each epoch only.",
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
        self._watch = _EpochWatch(_compat.epochs_of(model))
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
            self._resume()
        if self._saves_at_end:
            self._notice = Notice(self._watcher_fn)
            self._notice.begin()

    def _resume(self) -> None:
        place: Any = self._place.value
        model: Any = self.model
        _compat.begin_at(model, place["epoch"])
        self._history = place["history"]
        # Other callbacks may set a learning rate when the epoch begins, and Keras resets metrics.
        # After that the values are restored once more.
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
            # Not at the end of the epoch before: other callbacks change values there.
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
            remove_tree(self._manager.directory)

    def _save_or_exit(self, batch: int) -> None:
        noticed = self._notice is not None and self._notice.received
        ends = self._saves_at_end and self._channel.any("backup", noticed)
        if batch and self._watch.ends_with(batch):
            return  # Keras cannot resume after the last batch: save when the next epoch begins
        is_due = not batch or (self._every and batch - self._last_batch >= self._every)
        if ends or is_due:
            self._last_batch = batch
            self._save(batch)
        if ends:
            announce(f"A worker has to end. Saved in epoch {self._epoch}, batch {batch}.")
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
        _compat.begin_at(_compat.model_of(self), None)  # the next `fit` uses its `initial_epoch`
        if self._notice is not None:
            self._notice.close()
            self._notice = None


@final
class _Metrics:
    """The metrics of a compiled model, for a checkpoint."""

    def __init__(self, model: Any) -> None:
        self._model = model

    @property
    def variables(self) -> list[Any]:
        return self._model.metrics_variables


@final
class _Position:
    """The position of each worker's data at the start of its pass, for a checkpoint."""

    states_of_all = True

    def __init__(self, current: Callable[[], Any], channel: Channel) -> None:
        self.get_state = current
        self._channel = channel
        self.restored: Any = None

    def set_state(self, states: list[Any]) -> None:
        position = states[0]
        if isinstance(position, dict) and "workers" in position:
            position = states  # a distributed data set takes the positions of all workers
        elif len(states) == self._channel.size:
            position = states[self._channel.index]
        self.restored = position


def _variables(model: Any) -> list[Any]:
    return [*model.variables, *model.optimizer.variables, *model.metrics_variables]


def _random_state() -> dict[str, Any]:
    """The state of the generators from which Keras draws the order of data."""
    return {"numpy": np.random.get_state(), "python": random.getstate()}


def _set_random_state(state: dict[str, Any] | None, *, pythons: bool = True) -> None:
    """Restore a state of the generators, Python's only with `pythons`; None is a no-op."""
    if state is not None:
        np.random.set_state(state["numpy"])
        if pythons:
            random.setstate(state["python"])


@final
class _EpochWatch:
    """Follows and restores the place of one `fit` in Keras' epoch iterator."""

    def __init__(self, epochs: Any) -> None:
        self._adapter = epochs.data_adapter
        self._epochs = epochs
        self._on_arrival: Callable[[], None] = lambda: None
        self._place: dict[str, Any] | None = None  # the place to go to, until it is reached
        self._is_fresh = True  # whether the current pass began in this epoch, or has not begun
        self._before = 0  # batches of this pass that earlier epochs took
        self._taken = 0  # batches of this epoch
        self._is_last = False
        self._at_epoch: Any = None
        self._at_pass: Any = None
        if isinstance(self._adapter, HostAdapter):
            self._adapter.note_positions()
        _compat.watch_epochs(epochs, self._steps, self._batches)

    def place(self, batch: int) -> dict[str, Any]:
        """The place after `batch` batches of the epoch, as plain data; 0 between epochs."""
        spans_epochs = bool(self._epochs.steps_per_epoch) and not self._is_fresh
        if batch:
            before, begun = self._before, True
        else:
            before, begun = (self._before + self._taken, True) if spans_epochs else (0, False)
        length = self._epochs.num_batches
        return {
            "batch": batch,
            "length": None if length is None else int(length),
            "before": before,
            "begun": begun,
            "at_epoch": self._at_epoch,
            "at_pass": self._at_pass,
            "now": _random_state(),
        }

    @property
    def position(self) -> Any:
        """The position of a Replicax data set at the start of its pass; None for other data."""
        return getattr(self._adapter, "position", None)

    def go_to(self, place: dict[str, Any], position: Any, on_arrival: Callable[[], None]) -> None:
        """Let the next epoch resume at a saved place and position; then call `on_arrival`."""
        batch, had, has = place["batch"], place.get("length"), self._epochs.num_batches
        # Of a given number of steps, an epoch takes whatever comes next.
        counts = position is None and had is not None and not self._epochs.steps_per_epoch
        if batch and has and ((counts and had != has) or batch >= has):
            raise UsageError(
                f"Cannot continue after batch {batch} of {had or 'several'}: the epoch has {has} "
                "batches now. Use the data, the batch size and the steps of the run before, or "
                "another folder for the backup."
            )
        self._place = place
        self._on_arrival = on_arrival
        go_to = getattr(self._adapter, "go_to", None)
        if position is not None and go_to is not None:
            go_to(position, is_over=not place["begun"])

    def _batches(self, original: Callable[[], Any]) -> Iterator[Any]:
        """Replaces the function that makes an iterator of batches, which reads at `next`."""
        batches = original()
        self._is_fresh = True

        def watched() -> Iterator[Any]:
            if self._place is not None and self._place["begun"]:
                # If the pass began in this epoch, PyDataset threads have drawn Python's by now.
                _set_random_state(self._place["at_pass"], pythons=self._place["before"] > 0)
            self._at_pass = _random_state()
            yield from batches if self._epochs.num_batches else self._one_ahead(batches)

        return watched()

    def _one_ahead(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Read one batch ahead in a pass of unknown length, to know the last batch."""
        coming = next(batches, None)
        while coming is not None:
            batch, coming = coming, next(batches, None)
            self._is_last = coming is None
            yield batch

    def ends_with(self, batch: int) -> bool:
        """Whether `batch` batches complete the epoch."""
        length = self._epochs.num_batches
        return batch >= length if length else self._is_last

    def _steps(self, original: Callable[[], Any]) -> Iterator[Any]:
        """Replaces the function that enumerates the steps of an epoch."""
        place = self._place
        if place is not None:
            _set_random_state(place["at_epoch" if place["batch"] else "now"])
        self._at_epoch = _random_state()
        is_first = True
        for begin, end, iterator in original():
            if is_first:
                is_first = False
                self._begin_epoch(place, iterator)
            if place is not None and end < place["batch"]:
                _drop(iterator, end - begin + 1)
                continue
            if place is not None:
                _set_random_state(place["now"])
                place = self._place = None
                self._on_arrival()
            self._taken = end + 1
            yield begin, end, iterator

    def _begin_epoch(self, place: dict[str, Any] | None, iterator: Any) -> None:
        if place is not None and place["begun"]:
            self._before = place["before"]
            _drop(iterator, self._before)
            _compat.count_seen(self._epochs, self._before)
        else:
            self._before = 0 if self._is_fresh else self._before + self._taken
        self._is_fresh = False


def _drop(iterator: Any, count: int) -> None:
    for _ in range(count):
        if next(iterator, None) is None:
            raise UsageError(
                f"The data ends within the next {count} batches, which training has seen before. "
                "Use the data of the run before, or another folder for the backup."
            )
