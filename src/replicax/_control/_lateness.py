"""For how long the others have waited for each worker."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from statistics import median_low
from typing import final

_LATEST = 64  # messages by which the clock of a worker is known: clocks drift


@final
class Lateness:
    """Who was how late, in exchanges and in steps that all take together.

    Args:
        size: How many workers there are.
    """

    def __init__(self, size: int) -> None:
        self.seconds = [0.0] * size
        self._ahead = [deque[float](maxlen=_LATEST) for _ in range(size)]
        self._begin(0)

    def _begin(self, number: int) -> None:
        self._pass = number
        self._moments = [deque[float]() for _ in self.seconds]
        self._before = [float("-inf") for _ in self.seconds]

    def meet(self, gave: Mapping[int, float], waiting: Sequence[float]) -> None:
        """The others wait for who gives when the middle of them waits already."""
        middle = median_low(waiting)
        for index, moment in gave.items():
            self.seconds[index] += max(moment - middle, 0.0)

    def come(self, index: int, number: int, moments: Sequence[float], *, ahead: float) -> None:
        """Note when a worker came to the next steps of a pass.

        A step ends when all have begun it. So the others wait for who comes to one when the middle
        of them wants the next already.

        Args:
            index: The worker.
            number: Which pass it is.
            moments: When, by its own clock.
            ahead: By how much ours was ahead of that when this came. The least of late is the time
                between the two clocks; more than that was the way, and waiting.
        """
        self._ahead[index].append(ahead)
        if number > self._pass:
            self._begin(number)
        if number == self._pass:
            shift = min(self._ahead[index])
            self._moments[index].extend(moment + shift for moment in moments)
        while all(len(steps) > 1 for steps in self._moments):
            came = [steps.popleft() for steps in self._moments]
            middle = median_low([steps[0] for steps in self._moments])
            for worker, moment in enumerate(came):  # what was counted before counts once
                late = moment - max(middle, self._before[worker])
                self.seconds[worker] += max(late, 0.0)
            self._before = came
