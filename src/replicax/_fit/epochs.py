"""The way of `fit` through its data: noted down, and gone again after a restart.

Keras draws the order of arrays from NumPy's random numbers and that of a `PyDataset` from
Python's, whenever an epoch begins. So a place is the state of both at that moment, and a number
of batches, which are taken and dropped.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator
from typing import Any, final

import numpy as np

from replicax._core.errors import UsageError
from replicax._fit.data import HostAdapter
from replicax._keras import _compat
from replicax._keras.blaming import before_the_build


def install() -> None:
    """Put the seam into Keras' trainer; a second call changes nothing."""
    _compat.wrap(_compat.Trainer, _compat.DATA_LOOK, _noted)


def _noted(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def look(self: Any, iterator: Any = None, data_batch: Any = None) -> Any:
        if iterator is not None:
            _compat.note_epochs(self, iterator)
        try:
            return original(self, iterator, data_batch)
        except RuntimeError as caught:
            error = before_the_build(caught)
        raise error  # not where it was caught: that would cut the chain of errors before it

    return look


def heard_of_at_its_end(original: Callable[..., Any]) -> Callable[..., Any]:
    """`fit`, which tells who wants to know that it has ended; callbacks hear of success only."""

    @functools.wraps(original)
    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(self, *args, **kwargs)
        finally:
            _compat.end_of_fit(self)

    return fit


def random_state() -> dict[str, Any]:
    """The random numbers that Keras orders data by."""
    return {"numpy": np.random.get_state(), "python": random.getstate()}


def set_random_state(state: dict[str, Any] | None, *, pythons: bool = True) -> None:
    """Go on with these random numbers; None changes nothing."""
    if state is not None:
        np.random.set_state(state["numpy"])
        if pythons:
            random.setstate(state["python"])


@final
class EpochWatch:
    """Watches one `fit` take batches.

    Args:
        epochs: Keras' epoch iterator.
    """

    def __init__(self, epochs: Any) -> None:
        self._adapter = epochs.data_adapter
        self._epochs = epochs
        self._arrived: Callable[[], None] = lambda: None
        self._place: dict[str, Any] | None = None
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
        """Where this is, as plain data.

        Args:
            batch: How many batches of the epoch are done; 0 between epochs.
        """
        spans_epochs = bool(self._epochs.steps_per_epoch) and not self._is_fresh
        if batch:
            before, begun = self._before, True
        else:
            before, begun = (self._before + self._taken, True) if spans_epochs else (0, False)
        return {
            "batch": batch,
            "before": before,
            "begun": begun,
            "at_epoch": self._at_epoch,
            "at_pass": self._at_pass,
            "now": random_state(),
        }

    @property
    def position(self) -> Any:
        """Where a pass over a data set of Replicax is to go on from; None for other data."""
        return getattr(self._adapter, "position", None)

    def go_to(self, place: dict[str, Any], position: Any, arrived: Callable[[], None]) -> None:
        """Let the next epoch go on from a place.

        Args:
            place: What `place` gave.
            position: What `position` was.
            arrived: Called when the epoch is there, before its next step.
        """
        self._place, self._arrived = place, arrived
        go_to = getattr(self._adapter, "go_to", None)
        if position is not None and go_to is not None:
            go_to(position, is_over=not place["begun"])

    def _batches(self, original: Callable[[], Any]) -> Iterator[Any]:
        """Stands in for what makes an iterator of batches, which begins at the first `next`."""
        batches = original()
        self._is_fresh = True

        def watched() -> Iterator[Any]:
            if self._place is not None and self._place["begun"]:
                # In a pass of this epoch Python's are drawn by now, by the threads of a PyDataset.
                set_random_state(self._place["at_pass"], pythons=self._place["before"] > 0)
            self._at_pass = random_state()
            yield from batches if self._epochs.num_batches else self._one_ahead(batches)

        return watched()

    def _one_ahead(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Batches of a pass of unknown length, with one more read, to know the last."""
        coming = next(batches, None)
        while coming is not None:
            batch, coming = coming, next(batches, None)
            self._is_last = coming is None
            yield batch

    def ends_with(self, batch: int) -> bool:
        """Whether the epoch is over after this many batches."""
        length = self._epochs.num_batches
        return batch >= length if length else self._is_last

    def _steps(self, original: Callable[[], Any]) -> Iterator[Any]:
        """Stands in for what enumerates the steps of an epoch."""
        place = self._place
        if place is not None:
            set_random_state(place["at_epoch" if place["batch"] else "now"])
        self._at_epoch = random_state()
        is_first = True
        for begin, end, iterator in original():
            if is_first:
                is_first = False
                self._begin_epoch(place, iterator)
            if place is not None and end < place["batch"]:
                _drop(iterator, end - begin + 1)
                continue
            if place is not None:
                set_random_state(place["now"])
                place = self._place = None
                self._arrived()
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
                "Training goes on behind the batches that it has seen. Received: data that ends "
                f"within the next {count} of these. It is not the data of the run before. Use "
                "the same data, or another folder for the backup."
            )
