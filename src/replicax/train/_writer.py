"""A thread that writes a checkpoint while training goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import final


@final
class Writer:
    """Runs one job at a time, and keeps its failure until somebody asks."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._failures: list[Exception] = []

    def start(self, job: Callable[[], None]) -> None:
        """Run a job; the one before must have ended."""
        self._thread = threading.Thread(target=self._guarded, args=(job,))
        self._thread.start()

    def _guarded(self, job: Callable[[], None]) -> None:
        try:
            job()
        except Exception as error:
            self._failures.append(error)

    def end(self) -> bool:
        """Wait for the job; whether there was one."""
        if self._thread is None:
            return False
        self._thread.join()
        self._thread = None
        return True

    def raise_failure(self) -> None:
        """Raise what the job has raised, once."""
        if self._failures:
            raise self._failures.pop()
