"""A clock that stands while its process is stopped, so that who was stopped blames nobody else."""

from __future__ import annotations

import time
from typing import final


@final
class Ticks:
    """Seconds as a thread that ticks regularly has lived through them.

    After `SIGSTOP` and `SIGCONT`, or when a laptop was closed, the others seem to have been silent
    for long. So one tick counts for two intervals at most. Between ticks are about `interval`
    seconds.
    """

    def __init__(self, interval: float) -> None:
        self.now = 0.0
        self._most = 2 * interval
        self._last = time.monotonic()

    def tick(self) -> float:
        """Let time pass; only one thread does. Give the seconds that have passed."""
        now = time.monotonic()
        passed = min(now - self._last, self._most)
        self._last = now
        self.now += passed
        return passed
