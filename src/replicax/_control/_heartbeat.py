"""The thread by which a worker says that it lives, and hears whether the chief does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, final

from replicax._control._sample import Sampler
from replicax._control._wire import encode

if TYPE_CHECKING:
    from replicax._control._calls import Calls
    from replicax._control._limits import Limits


class Link(Protocol):
    """What a worker reaches the hub by: a connection, or for the chief itself, calls."""

    @property
    def received(self) -> int:
        """How many bytes have come: that it grows is a sign of life."""
        ...

    def send(self, frame: bytes, payload: bytes = b"") -> None:
        """Tell the hub something, without waiting."""
        ...

    def close(self) -> None:
        """End it."""
        ...


@final
class Heartbeat:
    """Tells the hub at each tick how this worker is.

    To go through one of `calls` is to move. `on_silence` is called when the hub has been silent for
    too long.
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
        """Begin, in a thread of its own."""
        self.beat(0.0)
        threading.Thread(target=self._run, name="replicax-heartbeat", daemon=True).start()

    def stop(self) -> None:
        """Say nothing any more."""
        self._stop.set()

    def beat(self, passed: float = 0.0) -> None:
        """Tell how this worker is now, so many seconds after the last time."""
        with self._lock:
            report = self._sampler.look(passed, self._calls.completed)
            self._link.send(encode({"kind": "beat", **report}))

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
