"""`Work`: how many closures each worker has ended, and how long they took; for many threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
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
        begin = time.perf_counter()
        yield
        seconds = time.perf_counter() - begin
        with self._lock:
            count, before = self._done.get(worker, (0, 0.0))
            self._done[worker] = count + 1, before + seconds

    def done(self) -> dict[int, tuple[int, float]]:
        """For each worker, how many closures have ended, and how many seconds they took."""
        with self._lock:
            return dict(self._done)
