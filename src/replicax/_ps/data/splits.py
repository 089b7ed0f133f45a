"""`Splits`: workers share an epoch out as they go, and each batch is given to one closure.

An epoch is cut into splits, whose batches are read in a row. A worker goes on in the split that it
has open; without one it opens the next that waits, or takes over half of another worker's rest. So
nobody waits for anybody, and no death needs to be announced: a closure keeps the batches that it
was given, wherever it finally runs. `division.py` and `split_reader.py` read the splits.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, final

from replicax._ps.queue.lanes import ComesLater
from replicax._ps.queue.remote_value import RemoteValueStatus

if TYPE_CHECKING:
    from replicax._ps.queue.closures import Closure

_PAUSE = 0.05  # seconds that a closure waits for the last ones before it frees its worker


class Place(NamedTuple):
    """Where a closure finds its batch: its part of the data (0 if there is one), and number in it.

    The split ends before `stop`, if that is known. `keep` are parts and numbers of batches that the
    worker has been given, too, and may ask for in another order.
    """

    part: int
    number: int
    stop: int | None
    keep: tuple[tuple[int, int], ...] = ()


@final
@dataclass
class _Split:
    """The batches of one part from the next one to be given to the one before `stop`."""

    part: int
    next: int
    stop: int | None


@final
@dataclass
class _Given:
    """The places given to a closure that has not ended, by the numbers of its batches."""

    closure: Closure
    worker: int
    places: dict[int, Place] = field(default_factory=dict)


@final
class Splits:
    """The batches of one epoch, given to closures; for many threads.

    A waiting split is its part, first batch and the one behind the last, or None if the end of the
    part shows only when it is read. Further ones, of one part without a known end, are where they
    begin and how many batches each has.
    """

    def __init__(
        self, waiting: Iterable[Sequence[Any]] = (), *, further: Sequence[int] | None = None
    ) -> None:
        self._changed = threading.Condition()
        self._waiting = deque(_Split(*split) for split in waiting)
        self._further = further
        self._open: dict[int, _Split] = {}
        self._given: dict[int, _Given] = {}
        self._computed: list[Closure] = []  # their results may not be known yet
        self._ends: dict[int, int] = {}

    def give(self, closure: Closure, number: int, worker: int) -> Place | None:
        """The place of a closure's batch; the same place again if it was given one before.

        None if all batches of the epoch have been computed with; `ComesLater` if all have been
        given, and some might have to be given again. `number` is which of its batches.
        """
        with self._changed:
            mine = self._given.setdefault(closure.id, _Given(closure, worker))
            mine.worker = worker
            if number not in mine.places:
                self._take_back_what_was_cancelled()
                place = self._next(worker)
                if place is None:
                    self._release(closure)
                    if not self._is_under_way():
                        return None
                    self._changed.wait(_PAUSE)
                    raise ComesLater
                mine.places[number] = place
            return mine.places[number]._replace(keep=self._others(mine))

    def ended(self, closure: Closure, number: int, length: int) -> None:
        """Note that a place lies behind the end of its part, which has at most `length` batches."""
        with self._changed:
            part = self._given[closure.id].places.pop(number).part
            self._ends[part] = min(length, self._ends.get(part, length))

    def release(self, closure: Closure) -> None:
        """Free the batches given to a closure that has not begun to compute."""
        with self._changed:
            self._release(closure)

    def finish(self, closure: Closure) -> None:
        """Note that a closure has ended, well or not."""
        with self._changed:
            self._given.pop(closure.id, None)
            self._computed = [*filter(_is_open, self._computed), closure]
            self._changed.notify_all()

    def get_state(self) -> dict[str, Any]:
        """The rest of the epoch as plain data; closures that have not ended count as not begun."""
        with self._changed:
            given = [place for given in self._given.values() for place in given.places.values()]
            begun = {id(split): split for split in self._open.values()}.values()
            left = [*begun, *self._waiting]
            return {
                "left": [[p.part, p.number, p.number + 1] for p in given]
                + [[s.part, s.next, s.stop] for s in left if self._has_more(s)],
                "further": self._further,
            }

    def _release(self, closure: Closure) -> None:
        given = self._given.pop(closure.id, None)
        if given is not None:
            places = sorted(given.places.values())
            self._waiting.extendleft(_Split(p.part, p.number, p.number + 1) for p in places[::-1])

    def _take_back_what_was_cancelled(self) -> None:
        over = [g.closure for g in self._given.values() if not _is_open(g.closure)]
        for closure in over:
            self._release(closure)

    def _is_under_way(self) -> bool:
        """Whether the end would come too soon: as an error it cancels results that are pending."""
        given = any(given.places for given in self._given.values())
        return given or any(map(_is_open, self._computed))

    def _others(self, mine: _Given) -> tuple[tuple[int, int], ...]:
        return tuple(
            (place.part, place.number)
            for given in self._given.values()
            if given is not mine and given.worker == mine.worker
            for place in given.places.values()
        )

    def _next(self, worker: int) -> Place | None:
        split = self._split_of(worker)
        if split is None:
            return None
        split.next += 1
        return Place(split.part, split.next - 1, split.stop)

    def _split_of(self, worker: int) -> _Split | None:
        """The worker's open split, if it has batches left."""
        split = self._open.pop(worker, None)
        while split is None or not self._has_more(split):
            if self._waiting:
                split = self._waiting.popleft()
            elif self._further is not None:
                start, size = self._further
                split = _Split(0, start, start + size)
                self._further = (start + size, size) if self._has_more(split) else None
            else:
                split = self._taken_over()
                break
        if split is not None:
            self._open[worker] = split
        return split

    def _taken_over(self) -> _Split | None:
        """Half of the largest rest of another worker; all of it, shared, if it has no end."""
        others = [split for split in self._open.values() if self._has_more(split)]
        if not others:
            return None
        endless = [split for split in others if self._end_of(split) is None]
        if endless:
            return min(endless, key=lambda split: split.next)  # the shortest way to skip to it
        rests = [(end - split.next, split) for split in others if (end := self._end_of(split))]
        rest, split = max(rests, key=lambda pair: pair[0])
        end = split.next + rest
        split.stop = end - (rest + 1) // 2
        return _Split(split.part, split.stop, end)

    def _end_of(self, split: _Split) -> int | None:
        ends = [end for end in (split.stop, self._ends.get(split.part)) if end is not None]
        return min(ends, default=None)

    def _has_more(self, split: _Split) -> bool:
        end = self._end_of(split)
        return end is None or split.next < end


def _is_open(closure: Closure) -> bool:
    return closure.value.state is RemoteValueStatus.NOT_READY
