"""How long workers wait for each other before somebody is blamed for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from replicax._core.env import watchdog_seconds


@final
@dataclass(frozen=True)
class Limits:
    """What the watchdog goes by; all are seconds.

    Args:
        silence: A worker that says nothing for so long is gone; one that stands still for so long
            while others wait for it is stuck.
        timeout: Nobody waits longer than this, even for a worker that is busy; None for no limit.
        joining: How long all workers have to connect to the chief.
        ending: How long the chief, if one is lost, waits for the others to end before it ends.
    """

    silence: float = 30.0
    timeout: float | None = None
    joining: float = 60.0
    ending: float = 5.0

    @classmethod
    def from_environ(cls, *, timeout: float | None = None) -> Limits:
        """The limits that `RX_WATCHDOG_SECONDS` asks for.

        Raises:
            UsageError: If it is no positive number.
        """
        return cls(silence=watchdog_seconds() or cls.silence, timeout=timeout)

    @property
    def beat(self) -> float:
        """How often a worker says that it is there: each second, more often if time is short."""
        return min(1.0, self.silence / 5)
