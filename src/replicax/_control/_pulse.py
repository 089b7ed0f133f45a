"""The thread by which a worker says that it lives, and hears whether the chief does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, final

from replicax._control._sample import Sampler
from replicax._control._ticks import Ticks
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
class Pulse:
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
        threading.Thread(target=self._run, name="replicax-pulse", daemon=True).start()

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
