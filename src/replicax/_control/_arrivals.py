"""When a worker comes to each of its steps: noted by itself, and told now and then."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic as clock
from typing import final

_SECONDS = 0.25  # between two messages


@final
class Arrivals:
    """The moments at which a worker comes to the steps of one pass.

    Args:
        tell: Called with moments that were noted, in order.
    """

    def __init__(self, tell: Callable[[list[float]], None]) -> None:
        self._tell = tell
        self._moments: list[float] = []
        self._told = 0.0

    def note(self) -> None:
        """Note that the next step is wanted now."""
        now = clock()
        self._moments.append(now)
        if now - self._told > _SECONDS:
            self.flush()
            self._told = now

    def flush(self) -> None:
        """Tell what is left."""
        moments, self._moments = self._moments, []
        if moments:
            self._tell(moments)
