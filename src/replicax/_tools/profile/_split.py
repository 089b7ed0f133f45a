"""Spans of time → the seconds of each part: arithmetic only."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, final

from replicax._core.events import COMPILE

PYTHON, OTHER, CALLBACKS = "python", "other", "callbacks"


class Moment(NamedTuple):
    """A moment of the main thread: the time, and its computing time so far, in seconds."""

    wall: float
    cpu: float


@final
@dataclass(frozen=True)
class Span:
    """A part of a step, from a moment to another one."""

    part: str
    begin: Moment
    end: Moment


@final
@dataclass(frozen=True)
class Step:
    """A step, from its begin to the next one's; `number` counts training steps before it."""

    kind: str
    begin: Moment
    end: Moment
    number: int = 0
    is_traced: bool = False

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end.wall - self.begin.wall


def split(step: Step, spans: Iterable[Span]) -> dict[str, float]:
    """The seconds that each part of a step took; together they are the step.

    A moment in several spans belongs to the one that began last, which the others contain. Time
    outside all spans is `PYTHON` if the main thread computed, and `OTHER` if not: it waited for
    something unreported. Spans may reach beyond the step.
    """
    inside = sorted(
        (span for span in spans if _overlap(span, step) > 0), key=lambda span: span.begin.wall
    )
    found: dict[str, float] = defaultdict(float)
    outer: list[Span] = []
    for number, span in enumerate(inside):
        own = _overlap(span, step) - covered(
            (one.begin.wall, min(one.end.wall, span.end.wall, step.end.wall))
            for one in inside[number + 1 :]
            if one.begin.wall < span.end.wall
        )
        found[span.part] += max(0.0, own)
        if not outer or span.begin.wall >= outer[-1].end.wall:
            outer.append(span)
    rest = max(0.0, step.seconds - sum(found.values()))
    computed = step.end.cpu - step.begin.cpu - sum(map(_cpu, outer))
    found[PYTHON] = min(rest, max(0.0, computed))
    found[OTHER] = rest - found[PYTHON]
    return dict(found)


def mean(steps: Sequence[Step], spans: Sequence[Span]) -> dict[str, float]:
    """The average seconds of each part of a step."""
    total: dict[str, float] = defaultdict(float)
    for step in steps:
        near = [one for one in spans if _overlap(one, step) > 0]
        for part, seconds in split(step, near).items():
            total[part] += seconds / len(steps)
    return dict(total)


def covered(intervals: Iterable[tuple[float, float]]) -> float:
    """The time that at least one of these intervals covers.

    Example:
        >>> from replicax._tools.profile._split import covered
        >>> covered([(0, 2), (1, 3), (5, 6)])
        4
    """
    return sum(end - begin for begin, end in union(intervals))


def union(intervals: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The same moments as disjoint intervals."""
    found: list[tuple[float, float]] = []
    for begin, end in sorted(intervals):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        elif end > begin:
            found.append((begin, end))
    return found


def _overlap(span: Span, step: Step) -> float:
    return min(span.end.wall, step.end.wall) - max(span.begin.wall, step.begin.wall)


def _cpu(span: Span) -> float:
    # JAX reports a compilation at its end, without its thread's computing time.
    if span.part == COMPILE:
        return max(span.end.cpu - span.begin.cpu, span.end.wall - span.begin.wall)
    return span.end.cpu - span.begin.cpu
