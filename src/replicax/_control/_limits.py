"""How long workers wait for each other before somebody is blamed for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from replicax._core.env import wait_limit_seconds, watchdog_seconds


@final
@dataclass(frozen=True)
class Limits:
    """What the watchdog goes by; all are seconds.

    Args:
        silence: A worker that says nothing for so long is gone. One that is alive and is waited
            for so long is worth a notice.
        timeout: Nobody waits longer than this for a worker, whatever it does; None for no limit.
        joining: How long all workers have to meet.
        ending: How long the chief, if one is lost, waits for the others to end before it ends.
    """

    silence: float = 30.0
    timeout: float | None = 600.0
    joining: float = 60.0
    ending: float = 5.0

    @classmethod
    def from_environ(cls) -> Limits:
        """The limits that `RX_WATCHDOG_SECONDS` and `RX_WAIT_LIMIT_SECONDS` ask for."""
        waiting = wait_limit_seconds()
        timeout = cls.timeout if waiting is None else waiting or None
        return cls(silence=watchdog_seconds() or cls.silence, timeout=timeout)

    @property
    def deadlock(self) -> float:
        """How long workers that wait for each other are waited for: all end within `silence`."""
        return self.silence * 2 / 3

    @property
    def connecting(self) -> float:
        """How long workers have to connect to the chief's hub once they have met."""
        return min(self.joining, 60.0)

    @property
    def beat(self) -> float:
        """How often a worker says that it is there: each second, more often if time is short."""
        return min(1.0, self.silence / 5)
