"""When a worker comes to each of its steps: noted by itself, and told now and then."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic as clock
from typing import Any, final

_SECONDS = 0.05  # between two messages, if nothing else is told


@final
class Moments:
    """The moments that nobody was told of yet, of all passes.

    Args:
        send: Called with a message.
    """

    def __init__(self, send: Callable[[dict[str, Any]], None]) -> None:
        self._send = send
        self._noted: deque[tuple[int, float]] = deque()
        self._told = 0.0
        self._passes = 0
        self._lock = threading.Lock()  # they are told in order

    def of_a_pass(self) -> Arrivals:
        """Those of one more pass; all workers begin one together."""
        self._passes += 1
        return Arrivals(self, self._passes)

    def note(self, number: int) -> None:
        """Note that the next step of a pass is wanted now."""
        now = clock()
        self._noted.append((number, now))
        if now - self._told > _SECONDS:
            self.tell()

    def tell(self) -> None:
        """Tell what is left. Not while garbage is collected: that may be in the midst of this."""
        if not self._noted:
            return
        with self._lock:
            steps = [self._noted.popleft() for _ in range(len(self._noted))]
            self._told = clock()
            self._send({"kind": "come", "steps": steps, "now": self._told})


@final
class Arrivals:
    """The moments at which a worker comes to the steps of one pass.

    Args:
        moments: Where they are noted.
        number: Which pass it is.
    """

    def __init__(self, moments: Moments, number: int) -> None:
        self._moments, self._number = moments, number

    def note(self) -> None:
        """Note that the next step is wanted now."""
        self._moments.note(self._number)

    def end(self) -> None:
        """Tell what is left, when the last step is wanted."""
        self._moments.tell()


Steps = Sequence[tuple[int, float]]
"""Numbers of passes, each with the moment when a step of it was wanted."""
