"""The time limits of the watchdog."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from replicax._core.env import wait_limit_seconds, watchdog_seconds


@final
@dataclass(frozen=True)
class Limits:
    """The limits of the watchdog, in seconds."""

    silence: float = 30.0  # a worker that is silent for longer is lost; waiting longer is noticed
    timeout: float | None = 600.0  # the longest wait for a live worker; None for no limit
    joining: float = 60.0  # for all workers to meet
    ending: float = 5.0  # for the other workers to end, before the chief ends

    @classmethod
    def from_environ(cls) -> Limits:
        """The limits of `RX_WATCHDOG_SECONDS` and `RX_WAIT_LIMIT_SECONDS`."""
        waiting = wait_limit_seconds()
        timeout = cls.timeout if waiting is None else waiting or None
        return cls(silence=watchdog_seconds() or cls.silence, timeout=timeout)

    @property
    def deadlock(self) -> float:
        """The time after which workers that wait for each other are dead-locked."""
        return self.silence * 2 / 3

    @property
    def connecting(self) -> float:
        """The time for workers to connect to the chief's hub after they have met."""
        return min(self.joining, 60.0)

    @property
    def beat(self) -> float:
        """The interval of heartbeats: a second, or less if `silence` is short."""
        return min(1.0, self.silence / 5)
