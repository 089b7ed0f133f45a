"""`Work`: how many closures each worker has ended, and how long they took; for many threads."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from time import perf_counter as clock
from typing import final


@final
class Work:
    """What workers have done so far."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._done: dict[int, tuple[int, float]] = {}

    @contextmanager
    def of(self, worker: int) -> Generator[None, None, None]:
        """The time of a closure on a worker; one that ends by an error does not count."""
        begin = clock()
        yield
        seconds = clock() - begin
        with self._lock:
            count, before = self._done.get(worker, (0, 0.0))
            self._done[worker] = count + 1, before + seconds

    def done(self) -> dict[int, tuple[int, float]]:
        """For each worker, how many closures have ended, and how many seconds they took."""
        with self._lock:
            return dict(self._done)
