"""How busy NVIDIA's GPUs are, asked in the background while a model trains."""

from __future__ import annotations

import contextlib
import threading
from typing import final

from replicax._core.machine import nvidia

_SECONDS = 5.0  # between two questions; each takes the driver about 50 ms


@final
class GpuLoad:
    """Asks every few seconds from its start to its `close`, on a thread; gives up at an error."""

    def __init__(self, seconds: float = _SECONDS) -> None:
        self._seconds, self._is_over = seconds, threading.Event()
        self._samples: list[list[float | None]] = []
        threading.Thread(target=self._ask, name="gpu-load", daemon=True).start()

    def mean(self) -> list[float | None]:
        """The mean of each GPU since the last call; empty if nobody answered in that time."""
        samples, self._samples = self._samples, []
        return [_mean(known) for known in zip(*samples, strict=False)]

    def close(self) -> None:
        """Ask no more."""
        self._is_over.set()

    def _ask(self) -> None:
        with contextlib.suppress(nvidia.NoAnswerError):
            while not self._is_over.wait(self._seconds):
                self._samples.append(nvidia.utilization())


def _mean(known: tuple[float | None, ...]) -> float | None:
    numbers = [one for one in known if one is not None]
    return sum(numbers) / len(numbers) if numbers else None
