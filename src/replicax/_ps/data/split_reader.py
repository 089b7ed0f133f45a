"""`SplitReader`: the batches of an epoch that one worker was given, in any order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

if TYPE_CHECKING:
    from replicax._ps.data.splits import Place

_OPEN = 3  # runs: one for each lane of a worker, and one just begun


class PartEnded(Exception):
    """A part has fewer batches than expected."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.length = length


@final
@dataclass
class _Run:
    part: int
    next: int
    stop: int | None
    batches: Iterator[Any]


@final
class SplitReader:
    """Reads forward; batches on its way that other closures were promised are kept.

    `begin` is called with a place. It returns the number of a batch at or before the place, the
    number of the end unless the part ends there, and the batches between.
    """

    def __init__(self, begin: Callable[[Place], tuple[int, int | None, Iterator[Any]]]) -> None:
        self._begin = begin
        self._runs: list[_Run] = []
        self._kept: dict[tuple[int, int], Any] = {}

    def batch(self, place: Place) -> Any:
        """The batch at a place."""
        wanted = place.part, place.number
        if wanted in self._kept:
            return self._kept.pop(wanted)
        run = self._run_to(place)
        while True:
            try:
                batch = next(run.batches)
            except StopIteration:
                self._runs.remove(run)
                raise PartEnded(run.next) from None
            here, run.next = (run.part, run.next), run.next + 1
            if here == wanted:
                break
            if here in place.keep:
                self._kept[here] = batch
        self._kept = {key: kept for key, kept in self._kept.items() if key in place.keep}
        return batch

    def _run_to(self, place: Place) -> _Run:
        for run in self._runs:
            behind = run.stop is not None and place.number >= run.stop
            if run.part == place.part and run.next <= place.number and not behind:
                return run
        run = _Run(place.part, *self._begin(place))
        self._runs = [*self._runs[1 - _OPEN :], run]
        return run
