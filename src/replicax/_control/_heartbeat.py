"""The thread that sends a worker's heartbeat, and checks the chief's; the clock for both."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, final

from replicax._control._sample import Sampler
from replicax._net import Encoded, encode

if TYPE_CHECKING:
    from replicax._control._calls import Calls
    from replicax._control._limits import Limits


class Link(Protocol):
    """A worker's link to the hub: a connection, or direct calls on the chief."""

    @property
    def received(self) -> int:
        """The number of bytes received, which grows while the chief lives."""
        ...

    def send(self, message: Encoded) -> None:
        """Send a message to the hub, without waiting."""
        ...

    def close(self) -> None:
        """Close the link."""
        ...


@final
class Heartbeat:
    """Reports the state of this worker to the hub at each tick.

    A completed call of `calls` counts as progress. `on_silence` is called when the hub has been
    silent for too long.
    """

    def __init__(
        self, link: Link, limits: Limits, calls: Calls, *, on_silence: Callable[[], None]
    ) -> None:
        self._link = link
        self._limits = limits
        self._calls = calls
        self._on_silence = on_silence
        self._lock = threading.Lock()
        self._sampler = Sampler()
        self._stop = threading.Event()

    def start(self) -> None:
        """Start the heartbeat in a thread of its own."""
        self.beat(0.0)
        threading.Thread(target=self._run, name="replicax-heartbeat", daemon=True).start()

    def stop(self) -> None:
        """Stop the heartbeat."""
        self._stop.set()

    def beat(self, passed: float = 0.0) -> None:
        """Report the state of this worker, `passed` seconds after the last report."""
        with self._lock:
            report = self._sampler.look(passed, self._calls.completed)
            self._link.send(encode("beat", report))

    def _run(self) -> None:
        ticks, received, heard = Ticks(self._limits.beat), -1, 0.0
        while not self._stop.wait(self._limits.beat):
            self.beat(ticks.tick())
            if received != self._link.received:
                received, heard = self._link.received, ticks.now
            elif ticks.now - heard >= self._limits.silence:
                self._on_silence()
                return


@final
class Ticks:
    """A clock that stands still while its process is stopped.

    After `SIGSTOP` and `SIGCONT`, or when a laptop was closed, the others seem to have been silent
    for long. So a tick, which is due every `interval` seconds, counts for two intervals at most.
    """

    def __init__(self, interval: float) -> None:
        self.now = 0.0
        self._most = 2 * interval
        self._last = time.monotonic()

    def tick(self) -> float:
        """Advance the clock, from one thread only; returns the seconds that have passed."""
        now = time.monotonic()
        passed = min(now - self._last, self._most)
        self._last = now
        self.now += passed
        return passed
