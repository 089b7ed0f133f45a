"""`StalenessGate`: lets only closures run at the same time whose updates stay fresh enough."""

from __future__ import annotations

import threading
from collections import deque
from typing import final

from replicax._core.errors import UsageError


@final
class StalenessGate:
    """Lets closures run at the same time as long as each update stays fresh enough.

    The age of an update is the number of other closures that ended between the admission of its own
    closure, when it may have read the variables, and that closure's end. A `bound` of 0 lets one
    closure run at a time; None sets no bound, and values may be pulled `ahead`, before the
    admission of the closure that uses them.
    """

    def __init__(self, bound: int | None, *, ahead: bool = True) -> None:
        check_bound(bound)
        self._bound = bound
        # With a bound, values pulled ahead would be older than the gate assumes.
        self.allows_ahead = ahead and bound is None
        self._changed = threading.Condition()
        self._waiting: deque[int] = deque()
        self._ended = 0
        self._ended_before: dict[int, int] = {}  # of running closures, as they were admitted
        self._closed = False

    def admit(self, closure: int) -> bool:
        """Wait until a closure may run; closures are admitted in order.

        False if the gate was closed instead.
        """
        if self._bound is None:
            return not self._closed
        with self._changed:
            self._waiting.append(closure)
            self._changed.wait_for(
                lambda: self._closed or (self._waiting[0] == closure and self._has_room())
            )
            self._waiting.remove(closure)
            if not self._closed:
                self._ended_before[closure] = self._ended
            self._changed.notify_all()  # the next one may fit in, too
            return not self._closed

    def finish(self, closure: int) -> None:
        """Note that a closure that was admitted has ended; it may have updated variables."""
        if self._bound is None:
            return
        with self._changed:
            if self._ended_before.pop(closure, None) is not None:
                self._ended += 1
                self._changed.notify_all()

    def close(self) -> None:
        """Admit no more closures, and tell those that wait."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _has_room(self) -> bool:
        # F runs, and aᵢ have ended since i ∈ F was admitted. In the worst case i ends after all
        # others: its update is then aᵢ + |F| old, the new one counted; the new one's is |F| old,
        # if all of F end before it. Who comes later asks the same, so no more has to be looked at.
        # The first in F has the largest aᵢ.
        assert self._bound is not None
        oldest = next(iter(self._ended_before.values()), self._ended)
        return self._ended - oldest + len(self._ended_before) <= self._bound


def check_bound(bound: int | None) -> None:
    """Refuse a value that does not bound staleness."""
    if bound is not None and (isinstance(bound, bool) or bound < 0):
        raise UsageError(
            "The bound of staleness must be None or a number of updates, at least 0. Received: "
            f"max_staleness={bound!r}. An update cannot be newer than the variables it was "
            "made from. Use 0 for one step after the other, or None for no bound."
        )
