"""The diagnosis of workers that make no progress: a pure function of their states and the limits.

`_message.py` has the text of a verdict; `_notices.py` has notices before one.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replicax._control._limits import Limits
    from replicax._control._states import WorkerState

Reason = Literal["altered", "failed", "died", "silent", "ended", "diverged", "apart", "timeout"]

_BEATS_TO_TELL = 1.5  # each worker reports its latest steps once a beat
# Seconds after a worker's end, in which workers that do not need it may finish.
_AFTER_AN_END = 5.0
_AFTER_A_PREEMPTION = 30.0  # the others may be about to save, too


class Verdict(NamedTuple):
    """The reason why all workers have to end, and the workers at fault."""

    reason: Reason
    culprits: tuple[int, ...]


def judge(states: Sequence[WorkerState], limits: Limits) -> Verdict | None:
    """Find the workers that block the others, by the most certain reason; None without any."""
    found: list[tuple[Reason, list[int]]] = [
        ("altered", [state.index for state in states if state.phase == "altered"]),
        ("died", [state.index for state in states if state.phase == "lost"]),
        # Before failures: a collective that meets another one may fail on any worker.
        ("diverged", _diverged(states)),
        # After deaths, because collectives fail everywhere when a worker dies.
        ("failed", _failed(states, limits)),
        ("silent", [s.index for s in states if s.is_here and s.quiet >= limits.silence]),
        ("ended", _ended_early(states, limits)),
        ("apart", _circle(states, limits.deadlock)),
        ("timeout", _overdue(states, limits)),
    ]
    return next((Verdict(reason, tuple(who)) for reason, who in found if who), None)


def _failed(states: Sequence[WorkerState], limits: Limits) -> list[int]:
    """Workers with an exception, once the others have reported their latest steps."""
    failed = [state for state in states if state.phase == "failed"]
    told = any(state.ended >= _BEATS_TO_TELL * limits.beat for state in failed)
    return [state.index for state in failed] if told else []


def _ended_early(states: Sequence[WorkerState], limits: Limits) -> list[int]:
    return [
        one.index
        for one in states
        if one.phase == "left" and any(_needs(other, one, limits) for other in states)
    ]


def _needs(other: WorkerState, one: WorkerState, limits: Limits) -> bool:
    """Whether a worker is blocked because another one has left."""
    fresh = 2 * limits.beat  # by then all workers have reported their waits
    grace = min(_AFTER_AN_END, limits.silence)
    if one.preempted:
        fresh = grace = _AFTER_A_PREEMPTION
    return (
        other.waits_for(one, fresh)
        or (one.ended >= grace and other.is_ahead_of(one, grace))
        or other.computes_without(one, max(grace, limits.silence))
    )


def _diverged(states: Sequence[WorkerState]) -> list[int]:
    """Workers whose latest steps differ, so that their collectives mix.

    The minority if there is a majority, else all workers.
    """
    steps = [dict(state.history) for state in states]
    common = set(steps[0]).intersection(*steps)
    if not common:
        return []
    latest = [step[max(common)] for step in steps]
    most, count = Counter(latest).most_common(1)[0]
    if count == len(latest):
        return []
    few = [state.index for state, one in zip(states, latest, strict=True) if one != most]
    return few if count > len(few) else [state.index for state in states]


def _circle(states: Sequence[WorkerState], seconds: float) -> list[int]:
    """Workers that wait for each other: a dead-lock, whatever their threads and devices do."""
    awaited = {
        one.index: {other.index for other in states if one.is_blocked_by(other, seconds)}
        for one in states
    }
    # Remove workers that wait for nobody in the circle, or that nobody in it waits for.
    circle = set(awaited)
    while outside := {
        index
        for index in circle
        if not awaited[index] & circle or not any(index in awaited[one] for one in circle)
    }:
        circle -= outside
    return sorted(circle)


def _overdue(states: Sequence[WorkerState], limits: Limits) -> list[int]:
    """Workers that others have waited for longer than the limit."""
    if limits.timeout is None:
        return []
    missing = {
        index
        for state in states
        if state.is_here
        for wait in state.waits
        if wait.seconds > limits.timeout
        for index in wait.missing
    }
    if missing:
        waiting = {state.index for state in states if state.waits}
        return sorted(missing - waiting) or sorted(missing)
    here = [state for state in states if state.is_here]
    last = min((state.step for state in here), default=0)
    if any(state.step > last and state.unmoved > limits.timeout for state in here):
        return [state.index for state in here if state.step == last]
    return []
