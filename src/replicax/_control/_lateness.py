"""For how long the others have waited for each worker."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from statistics import median_low
from typing import TYPE_CHECKING, final

if TYPE_CHECKING:
    from replicax._control._arrivals import Steps

_LATEST = 64  # messages by which the clock of a worker is known: clocks drift
_PASSES = 4  # so many are underway at most: training, and an evaluation in the midst of it


@final
class Lateness:
    """Who was how late, in exchanges and in steps that all take together.

    Args:
        size: How many workers there are.
    """

    def __init__(self, size: int) -> None:
        self.seconds = [0.0] * size
        self._ahead = [deque[float](maxlen=_LATEST) for _ in range(size)]
        self._passes: OrderedDict[int, _Pass] = OrderedDict()

    def meet(self, gave: Mapping[int, float], waiting: Sequence[float]) -> None:
        """The others wait for who gives when the middle of them waits already."""
        middle = median_low(waiting)
        for index, moment in gave.items():
            self.seconds[index] += max(moment - middle, 0.0)

    def come(self, index: int, steps: Steps, *, ahead: float) -> None:
        """Note when a worker came to its next steps.

        Args:
            index: The worker.
            steps: When, by its own clock, with the number of the pass.
            ahead: By how much ours was ahead of that when this came. The least of late is the time
                between the two clocks; more than that was the way, and waiting.
        """
        self._ahead[index].append(ahead)
        shift = min(self._ahead[index])
        for number, moment in steps:
            if number not in self._passes:
                self._passes[number] = _Pass(len(self.seconds))
            self._passes[number].came[index].append(moment + shift)
            self._passes.move_to_end(number)
        for number, _ in steps:
            for worker, late in enumerate(self._passes[number].late()):
                self.seconds[worker] += late
        while len(self._passes) > _PASSES:
            self._passes.popitem(last=False)


@final
class _Pass:
    """When each worker came to the steps of a pass that were not counted yet."""

    def __init__(self, size: int) -> None:
        self.came = [deque[float]() for _ in range(size)]
        self._before = [float("-inf")] * size

    def late(self) -> list[float]:
        """How late each was in the steps that are known of all, with those behind them.

        A step ends when all have begun it. So the others wait for who comes to one when the middle
        of them wants the next already.
        """
        seconds = [0.0] * len(self.came)
        while all(len(moments) > 1 for moments in self.came):
            came = [moments.popleft() for moments in self.came]
            middle = median_low([moments[0] for moments in self.came])
            for worker, moment in enumerate(came):  # what was counted before counts once
                seconds[worker] += max(moment - max(middle, self._before[worker]), 0.0)
            self._before = came
        return seconds
