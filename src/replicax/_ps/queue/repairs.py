"""`Repairs`: of several threads that find a thing broken, one mends it while the others wait."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import final


@final
class Repairs:
    """One repair of each thing at a time, and none of a thing that was mended meanwhile.

    A thread notes the time (`now`) before it uses a thing. If it finds it broken, and the thing was
    mended after that time, the thread has seen the old failure, not a new one.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._underway: set[Hashable] = set()
        self._mended_at: dict[Hashable, int] = {}
        self._time = 0

    def now(self) -> int:
        """The time, counted in repairs."""
        return self._time

    def is_underway(self, thing: Hashable) -> bool:
        """Whether a repair of the thing is under way; read without a lock."""
        return thing in self._underway

    def wait(self, thing: Hashable) -> None:
        """Wait until no repair of the thing is under way."""
        if thing in self._underway:
            with self._changed:
                self._changed.wait_for(lambda: thing not in self._underway)

    def mend(
        self,
        thing: Hashable,
        since: int,
        work: Callable[[], None],
        *,
        first: Callable[[], None] = lambda: None,
    ) -> None:
        """Mend the thing by `work`, or wait for the thread that does.

        The thing was last used after the time `since`. If `work` raises, this thread gets the
        error, and the others go on and find out by themselves. `first` is called in any case, once
        the thing is known to be broken.
        """
        with self._changed:
            is_mine = thing not in self._underway and self._mended_at.get(thing, -1) <= since
            if is_mine:
                self._underway.add(thing)
        try:
            first()
            if is_mine:
                work()
            else:
                self.wait(thing)
        finally:
            if is_mine:
                self._end(thing)

    def _end(self, thing: Hashable) -> None:
        with self._changed:
            self._time += 1
            self._mended_at[thing] = self._time
            self._underway.discard(thing)
            self._changed.notify_all()
