"""Which closures' updates a server has applied, so that each is applied once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import final

import numpy as np

# Ids remembered: a closure is repeated soon after its worker died, and so many others may come
# in between.
REMEMBERED = 1 << 17


@final
class Applied:
    """The ids of the closures, or of the coordinator's requests, that were applied last.

    Ids of a snapshot are given the oldest first.
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
        """The ids for a snapshot."""
        return list(self._ids)


def as_ranges(ids: Iterable[int]) -> list[list[int]]:
    """Ids as runs of consecutive ones, (first, behind the last); most ids are consecutive."""
    known = np.unique(np.fromiter(ids, np.int64))
    breaks = np.flatnonzero(np.diff(known) != 1) + 1
    return [[int(run[0]), int(run[-1]) + 1] for run in np.split(known, breaks) if len(run)]


def from_ranges(ranges: Iterable[Sequence[int]]) -> list[int]:
    """The ids of some runs, lowest first, which is about the order in which they were applied."""
    return [number for first, end in ranges for number in range(first, end)]
