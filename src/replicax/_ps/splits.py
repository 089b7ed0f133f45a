"""`SplitQueue`: workers share a data set out as they go, and each example counts once in an epoch.

The data set is cut into splits; which elements a split has, and who reads them, is elsewhere. A
worker takes one, says which of its elements have been visited, and that it is done. What a dead
worker had not visited is given to another.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from replicax._core.errors import UsageError


@final
@dataclass(frozen=True)
class Split:
    """A part of one epoch.

    Args:
        epoch: Which pass over the data, from 0.
        index: Which part of it, from 0.
        visited: The numbers of its elements that are to be left out, since a worker that died
            has visited them.
    """

    epoch: int
    index: int
    visited: frozenset[int] = frozenset()


@final
@dataclass(frozen=True)
class SplitProgress:
    """How far the workers have come.

    Args:
        done: How many splits are done, of all epochs.
        out: How many are with workers.
        samples: How many examples have been visited, for each epoch that has begun.
    """

    done: int
    out: int
    samples: tuple[int, ...]


@final
class SplitQueue:
    """The splits of one or more epochs, handed out to whoever asks; for many threads.

    Epochs follow each other without a pause: the first splits of the next one are handed out
    while the last ones of this one are with workers. Only at the end of all is there a wait.

    Args:
        num_splits: Into how many splits an epoch is cut.
        epochs: How many passes over the data; None for no end.
        seed: Gives each epoch another order of its splits; None for the order of their numbers.
    """

    def __init__(self, num_splits: int, *, epochs: int | None = 1, seed: int | None = None) -> None:
        if num_splits < 0 or (epochs is None and num_splits == 0) or (epochs or 0) < 0:
            raise UsageError(
                "A data set is shared out in splits, over a number of epochs. Received: num_splits="
                f"{num_splits}, epochs={epochs}. Neither can be negative, and an endless pass over "
                "nothing would never give anything. Give a data set that has elements."
            )
        self._num_splits = num_splits
        self._epochs = epochs
        self._seed = seed
        self._changed = threading.Condition()
        self._begun = 0
        self._waiting: deque[Split] = deque()
        self._out: dict[tuple[int, int], _Held] = {}
        self._stuck: dict[int, int] = {}  # how many of a worker's takers hold what they have
        self._samples: dict[int, int] = {}
        self._done = 0
        self._closed = False

    @property
    def is_complete(self) -> bool:
        """Whether all splits of all epochs are done."""
        with self._changed:
            return self._is_complete()

    @property
    def progress(self) -> SplitProgress:
        """How far the workers have come."""
        with self._changed:
            samples = tuple(self._samples.get(epoch, 0) for epoch in range(self._begun))
            return SplitProgress(self._done, len(self._out), samples)

    def take(self, worker: int, *, holding: bool = False) -> Split | None:
        """Take a split for a worker.

        When none is left, this waits for those that are out with other workers, who might die.

        Args:
            worker: Who will read it.
            holding: Whether the worker keeps what it has until it gets an answer, such as for a
                batch that is not full. If all workers do, none would ever get one: all are told
                None then, and if one dies after that, the others can take what it had.

        Returns:
            None if there is nothing left to read.
        """
        with self._changed:
            if holding:
                self._stuck[worker] = self._stuck.get(worker, 0) + 1
                self._changed.notify_all()
            try:
                self._changed.wait_for(
                    lambda: (
                        self._closed
                        or self._has_next()
                        or self._is_complete()
                        or (holding and self._all_are_stuck())
                    )
                )
            finally:
                if holding:
                    self._stuck[worker] -= 1
            if self._closed or not self._has_next():
                return None
            split = self._next()
            self._out[split.epoch, split.index] = _Held(worker, split, set(split.visited))
            return split

    def visit(self, worker: int, split: Split, element: int, *, samples: int = 1) -> bool:
        """Note that an element has been visited, and will not be again in this epoch.

        Args:
            worker: Who has.
            split: What the element is of.
            element: Its number in the split.
            samples: How many examples it has.

        Returns:
            Whether it counts: not twice, and not if the split was taken from the worker meanwhile.
        """
        with self._changed:
            held = self._held(worker, split)
            if held is None or element in held.visited:
                return False
            held.visited.add(element)
            self._samples[split.epoch] = self._samples.get(split.epoch, 0) + samples
            return True

    def done(self, worker: int, split: Split) -> bool:
        """Note that all elements of a split have been visited.

        Returns:
            Whether it counts: not if the split was taken from the worker meanwhile.
        """
        with self._changed:
            if self._held(worker, split) is None:
                return False
            del self._out[split.epoch, split.index]
            self._done += 1
            self._changed.notify_all()
            return True

    def lost(self, worker: int) -> list[Split]:
        """Note that a worker died: what it had not visited is handed out again, before all else.

        Returns:
            The splits that it had.
        """
        with self._changed:
            mine = [held.left() for held in self._out.values() if held.worker == worker]
            for split in mine:
                del self._out[split.epoch, split.index]
            self._waiting.extendleft(reversed(mine))
            self._changed.notify_all()
            return mine

    def close(self) -> None:
        """Hand out nothing any more; who waits is told None."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def snapshot(self) -> dict[str, Any]:
        """What has been visited, as JSON: for a checkpoint. What is out has to be read again."""
        with self._changed:
            ahead = [held.left() for held in self._out.values()] + list(self._waiting)
            return {
                "num_splits": self._num_splits,
                "seed": self._seed,
                "begun": self._begun,
                "done": self._done,
                "left": [[s.epoch, s.index, sorted(s.visited)] for s in ahead],
                "samples": sorted(self._samples.items()),
            }

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Go on where `snapshot` was made; what is out with workers does not count any more.

        Raises:
            UsageError: If it was made of another data set.
        """
        theirs = snapshot["num_splits"], snapshot["seed"]
        if theirs != (self._num_splits, self._seed):
            raise UsageError(
                "Progress can be restored for the data set that it was saved of. Received: "
                f"num_splits={theirs[0]} and seed={theirs[1]}, for a data set with num_splits="
                f"{self._num_splits} and seed={self._seed}. The numbers of its splits would mean "
                "other examples. Restore with the same data set, or begin the epoch anew."
            )
        with self._changed:
            self._begun, self._done = snapshot["begun"], snapshot["done"]
            left = ((epoch, index, frozenset(seen)) for epoch, index, seen in snapshot["left"])
            self._waiting = deque(itertools.starmap(Split, left))
            self._samples = dict(snapshot["samples"])
            self._out.clear()
            self._changed.notify_all()

    def _held(self, worker: int, split: Split) -> _Held | None:
        """What is known of a split, if the worker still has it."""
        held = self._out.get((split.epoch, split.index))
        return held if held and held.worker == worker else None

    def _has_next(self) -> bool:
        return bool(self._waiting) or self._has_epoch()

    def _has_epoch(self) -> bool:
        return self._num_splits > 0 and (self._epochs is None or self._begun < self._epochs)

    def _is_complete(self) -> bool:
        return not self._has_next() and not self._out

    def _all_are_stuck(self) -> bool:
        return all(self._stuck.get(held.worker, 0) for held in self._out.values())

    def _next(self) -> Split:
        if not self._waiting:
            self._waiting.extend(Split(self._begun, index) for index in self._order(self._begun))
            self._begun += 1
        return self._waiting.popleft()

    def _order(self, epoch: int) -> list[int]:
        if self._seed is None:
            return list(range(self._num_splits))
        return np.random.default_rng([self._seed, epoch]).permutation(self._num_splits).tolist()


@final
@dataclass(frozen=True)
class _Held:
    """A split that is with a worker, and which of its elements have been visited."""

    worker: int
    split: Split
    visited: set[int]

    def left(self) -> Split:
        """What another worker would have to read."""
        return Split(self.split.epoch, self.split.index, frozenset(self.visited))
