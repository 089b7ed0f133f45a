"""Synchronous rounds for dense variables, beside asynchronous tables: `dense="mirrored"`.

In a round each worker runs one closure, all from the same dense values. What they push is summed,
and applied once, as its mean, when the last has ended: what an all-reduce would give. Rows of
tables are updated at once, as they come.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, final

import numpy as np

from replicax._core.errors import UsageError


@final
class Sums:
    """What a server has got in this round."""

    def __init__(self) -> None:
        self._totals: dict[tuple[int, ...], list[Any]] = {}
        self._counts: dict[tuple[int, ...], int] = {}

    def add(self, key: tuple[int, ...], arrays: Sequence[Any], count: int = 1) -> None:
        """Add what one closure has computed, or several in all."""
        before = self._totals.get(key)
        new = [np.asarray(array) for array in arrays]
        self._totals[key] = (
            new if before is None else [a + b for a, b in zip(before, new, strict=True)]
        )
        self._counts[key] = self._counts.get(key, 0) + count

    def held(self) -> list[tuple[tuple[int, ...], int, list[Any]]]:
        """What it has got so far: keys, counts and sums. They are not changed any more."""
        return [(key, self._counts[key], totals) for key, totals in self._totals.items()]

    def means(self) -> dict[tuple[int, ...], list[Any]]:
        """The means of the round, by key; the next round begins."""
        found = {
            key: [(total / self._counts[key]).astype(total.dtype) for total in totals]
            for key, totals in self._totals.items()
        }
        self._totals, self._counts = {}, {}
        return found


@final
class RoundGate:
    """Lets closures run in rounds, one for each worker.

    Args:
        size: How many workers there are.
        end: Called at the end of each round, when none of its closures runs any more. A round
            ends when each worker has had a closure, or when somebody waits for the updates.
    """

    def __init__(self, size: Callable[[], int], end: Callable[[], None]) -> None:
        self.allows_ahead = False  # the next closure begins with what the end of the round makes
        self._size, self._end = size, end
        self._changed = threading.Condition()
        self._waiting: deque[int] = deque()
        self._running: set[int] = set()
        self._admitted = 0
        self._ending = False
        self._wanted = False
        self._closed = False

    def admit(self, closure: int) -> bool:
        """Wait until a closure may run; False if the gate was closed instead."""
        with self._changed:
            self._waiting.append(closure)
            self._changed.wait_for(
                lambda: self._closed or (self._waiting[0] == closure and self._has_room())
            )
            self._waiting.remove(closure)
            if not self._closed:
                self._running.add(closure)
                self._admitted += 1
            self._changed.notify_all()
            return not self._closed

    def finish(self, closure: int) -> None:
        """Note that a closure has ended; the last one of a full round ends the round."""
        with self._changed:
            if closure not in self._running:
                return
            self._running.remove(closure)
            ends = self._is_over()
            self._ending |= ends
        if ends:
            self._finish_round()

    def flush(self) -> None:
        """Somebody waits for the updates: end a round that has begun, also if it is not full."""
        with self._changed:
            self._wanted = self._admitted > 0
            ends = self._is_over()
            self._ending |= ends
        if ends:
            self._finish_round()

    def _is_over(self) -> bool:
        full = self._admitted >= self._size() or (self._wanted and self._admitted > 0)
        return full and not self._running and not self._ending

    def _finish_round(self) -> None:
        try:
            self._end()
        finally:
            with self._changed:
                self._admitted, self._ending, self._wanted = 0, False, False
                self._changed.notify_all()

    def close(self) -> None:
        """Let nobody in any more; who waits is told."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _has_room(self) -> bool:
        return not self._ending and self._admitted < self._size()


def check_dense(dense: str, max_staleness: int | None) -> bool:
    """Whether dense variables are trained in rounds.

    Raises:
        UsageError: For a word that says neither, and for rounds with a bound of staleness.
    """
    if dense not in ("servers", "mirrored"):
        raise UsageError(
            "Dense variables are trained as updates come, or in rounds. Received: "
            f"dense={dense!r}. 'servers' applies each update at once, 'mirrored' the mean of all "
            "workers' at the same time. Pass one of these."
        )
    if dense == "mirrored" and max_staleness is not None:
        raise UsageError(
            "Rounds have no staleness to be bounded. Received: dense='mirrored' with max_staleness="
            f"{max_staleness}. All closures of a round begin with the same values. Leave one out."
        )
    return dense == "mirrored"
