"""Which closures' updates a server has applied, so that each is applied once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import final

# A closure comes again when its worker dies, soon after it came first; so many others may come
# between.
REMEMBERED = 1 << 17


@final
class Applied:
    """The ids of the closures that were applied last.

    Args:
        ids: Those of a snapshot, the oldest first.
    """

    def __init__(self, ids: Iterable[int] = ()) -> None:
        self._ids = dict.fromkeys(ids)

    def __contains__(self, closure: int) -> bool:
        return closure in self._ids

    def add(self, closure: int) -> None:
        """Note a closure."""
        self._ids[closure] = None
        if len(self._ids) > REMEMBERED:
            del self._ids[next(iter(self._ids))]

    def ids(self) -> list[int]:
        """What is to be kept in a snapshot."""
        return list(self._ids)
