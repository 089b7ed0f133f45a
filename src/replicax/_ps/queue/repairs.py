"""`Repairs`: what several threads find broken is mended by one of them, while the others wait."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import final


@final
class Repairs:
    """One repair at a time of each thing, and none of what has been mended meanwhile.

    A thread notes the time (`now`) before it uses a thing. If it then finds it broken, and the
    thing was mended after that time, it has seen the end of the old one, not a new failure.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._underway: set[Hashable] = set()
        self._mended_at: dict[Hashable, int] = {}
        self._time = 0

    def now(self) -> int:
        """The time, in numbers of repairs."""
        return self._time

    def is_underway(self, thing: Hashable) -> bool:
        """Whether somebody mends the thing; asked without a lock."""
        return thing in self._underway

    def wait(self, thing: Hashable) -> None:
        """Wait until nobody mends the thing."""
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
        """Mend the thing by `work`, or wait for the one who does.

        It was used after the time `since`. If `work` raises, this thread gets the error, and the
        others go on: they will see. `first` is called in any case, once it is known that the thing
        is broken.
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
