"""Why the workers of a cluster cannot go on together, and the watchdog's words for it.

`judge` is a pure function: the same states give the same verdict, which tests can construct.
"""

from __future__ import annotations

import functools
import itertools
import textwrap
from collections import Counter
from typing import TYPE_CHECKING, Literal, NamedTuple, final

from replicax._core.errors import WorkerLost

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from replicax._control._heartbeat import Limits
    from replicax._control._worker_table import WorkerState


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
    is_reported = any(state.ended >= _BEATS_TO_TELL * limits.beat for state in failed)
    return [state.index for state in failed] if is_reported else []


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
    blocked = [one for one in states if one.is_here and one.unmoved >= seconds]
    indices = {one.index for one in blocked}

    @functools.cache
    def behind(step: int) -> set[int]:
        return {other.index for other in blocked if other.step < step}

    awaited = {  # the missing workers of an exchange, or else those in an earlier step
        one.index: one.awaited(seconds, main=True) & indices
        if any(wait.is_main for wait in one.waits)
        else behind(one.step)
        for one in blocked
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


EXIT_CODE = 70  # EX_SOFTWARE of sysexits.h: neither Python nor a shell ends a process with it

_WHY = f"The others cannot finish a step, so every worker ends, with exit code {EXIT_CODE}."
WAITERS_SHOWN = 3
CULPRITS_SHOWN = 4
_OBSERVED: dict[Reason, str] = {
    "altered": "had a message altered on its connection with the chief",
    "failed": "failed with an unhandled exception",
    "died": "died: its connection closed without notice",
    "silent": "fell silent: it sent nothing for {silence:g} s",
    "ended": "ended while others needed it",
    "diverged": "took other steps than the rest: collectives would mix their numbers",
    "apart": "wait for each other at different places of the program, which is a dead-lock",
    "timeout": "kept others waiting longer than the limit of {timeout:g} s",
}
_SAME = (
    "Let every worker do the same: look for data of different length, a break, stop_training or "
    "evaluate() on one worker only, or an `if` on the number of the worker."
)
_FIXES: dict[Reason, str] = {
    "altered": "Something between the machines changes messages, or sends its own: look for a "
    "proxy, a faulty network card, or somebody who should not be there; see docs/security.md.",
    "failed": "Fix that error.",
    "died": "Its own output may say why. If it has none, look in the log of its machine whether "
    "memory ran out or somebody killed it.",
    "silent": "Look whether the process is stopped (SIGSTOP, a debugger), or its machine or its "
    "network gone. If native code may hold it that long, set RX_WATCHDOG_SECONDS to more.",
    "ended": "Let every worker take the same number of steps: look for an `if` on the number of "
    "the worker, a shorter data set, or sys.exit() on one of them.",
    "diverged": _SAME,
    "apart": _SAME,
    "timeout": "The stack shows where it is. If that may take so long, raise RX_WAIT_LIMIT_SECONDS "
    "(0: no limit), or timeout_seconds of CommunicationOptions if that is set.",
}


def worker_lost(verdict: Verdict, states: Sequence[WorkerState], limits: Limits) -> WorkerLost:
    """The error of a verdict, with its text."""
    culprits = [states[index] for index in verdict.culprits]
    observed = _OBSERVED[verdict.reason].format(silence=limits.silence, timeout=limits.timeout or 0)
    lines = [
        f"The cluster cannot go on: {listed(verdict.culprits)} {observed}.",
        *(text for state in _unlike(culprits) for text in _of_culprit(state, verdict.reason)),
        *_of_waiters(waiters(verdict, states)),
        f"{_WHY} {_FIXES[verdict.reason]}",
        # Repeated, because `replicax run` and many logs show only the last lines.
        f"Lost: {_who(culprits)}: {observed.partition(':')[0]}.",
    ]
    return WorkerLost("\n".join(lines), verdict.culprits)


def _unlike(culprits: Sequence[WorkerState]) -> Sequence[WorkerState]:
    """A few of them, each at another place: the stacks of a thousand fit in no message."""
    if len(culprits) <= CULPRITS_SHOWN:
        return culprits
    places = {
        (state.step, state.doing, *(wait.name for wait in state.waits)): state
        for state in reversed(culprits)
    }
    return sorted(places.values(), key=lambda state: state.index)[:CULPRITS_SHOWN]


def waiters(verdict: Verdict, states: Sequence[WorkerState]) -> list[WorkerState]:
    """The workers that wait for a culprit, in an exchange or in a later step."""
    culprits = [states[index] for index in verdict.culprits]
    return [
        state
        for state in states
        if state.index not in verdict.culprits
        and any(
            state.waits_for(one) or state.is_ahead_of(one) or state.computes_without(one)
            for one in culprits
        )
    ]


def listed(indices: Sequence[int]) -> str:
    """`worker 1`, or `workers 1 and 2`."""
    *first, last = map(str, indices)
    return f"workers {', '.join(first)} and {last}" if first else f"worker {last}"


def whereabouts(state: WorkerState) -> str:
    """The step and the exchange that a worker is in, in words."""
    step = f"at step {state.step} ({state.doing})" if state.step else "before its first step"
    waits = [
        f"for {wait.seconds:.0f} s in exchange {wait.name!r} (call {wait.number}), "
        f"which {listed(wait.missing)} {'has' if len(wait.missing) == 1 else 'have'} not come to"
        for wait in state.waits
        if wait.missing
    ]
    return ", ".join([step, *waits])


def named(state: WorkerState) -> str:
    """A worker with its host and process id."""
    pid = f", pid {state.pid}" if state.pid else ""
    return f"worker {state.index} (host {state.host}{pid})"


def stack_of(state: WorkerState) -> str:
    """A sentence with the Python stack of a worker, or the reason why there is none."""
    if state.stack is None:
        return "Its Python stack is not known."
    if not state.stack:
        return "Its program has ended."
    return f"Its Python stack:\n{textwrap.indent(state.stack, '    ')}"


def _who(culprits: Sequence[WorkerState]) -> str:
    if len(culprits) > WAITERS_SHOWN:
        return listed([state.index for state in culprits])
    return " and ".join(map(named, culprits))


def _of_culprit(state: WorkerState, reason: Reason) -> list[str]:
    latest = ", when last heard of" if reason in ("altered", "died", "silent") else ""
    ago = f" {state.quiet:.0f} s before" if latest and state.quiet >= 1 else ""
    about = f"  {named(state)} was {whereabouts(state)}{latest}{ago}."
    if state.error:
        return [f"{about} It said:", textwrap.indent(state.error, "      ")]
    return [f"{about} {stack_of(state)}"]


def _of_waiters(found: Sequence[WorkerState]) -> list[str]:
    shown = [
        f"  {named(state)} waits for it {whereabouts(state)}. {stack_of(state)}"
        for state in found[:WAITERS_SHOWN]
    ]
    rest = [state.index for state in found[WAITERS_SHOWN:]]
    return [
        *shown,
        *([f"  So {'do' if len(rest) > 1 else 'does'} {listed(rest)}."] if rest else []),
    ]


_AGAIN_AFTER = 60.0


@final
class Notices:
    """Remembers the notices, so that each is printed once a minute."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._said: dict[str, float] = {}

    def due(self, states: Sequence[WorkerState], now: float) -> list[str]:
        """The notices that are due now."""
        found = dict(_observe(states, self._limits))
        self._said = {about: when for about, when in self._said.items() if about in found}
        due = [a for a in found if now - self._said.get(a, -_AGAIN_AFTER) >= _AGAIN_AFTER]
        self._said.update(dict.fromkeys(due, now))
        return [found[about] for about in due]


def _observe(states: Sequence[WorkerState], limits: Limits) -> Iterator[tuple[str, str]]:
    """All notices, each with a key of its subject."""
    silence = limits.silence
    here = [state for state in states if state.is_here]
    ended = [state for state in states if state.phase == "left" and state.ended >= silence]
    waiting = _waiting(here, silence)
    for one in here:
        if one.index in waiting:
            yield f"wait {one.index}", _of_wait(waiting[one.index], one, limits.timeout)
    if ended and here:
        numbers = [state.index for state in here]
        yield f"end {numbers}", _of_end(ended, here)
    if len(here) > 1 and not waiting and min(state.unmoved for state in here) >= silence:
        yield "all", _of_all(here)


def _waiting(here: Sequence[WorkerState], seconds: float) -> dict[int, list[WorkerState]]:
    """For each worker, who has waited for it so long: in an exchange, or in a later step."""
    indices, by_step = {one.index for one in here}, sorted(here, key=lambda one: one.step)
    found: dict[int, list[WorkerState]] = {}
    for state in here:
        awaited = state.awaited(seconds) & indices
        if state.unmoved >= seconds:
            earlier = itertools.takewhile(lambda one, step=state.step: one.step < step, by_step)
            awaited.update(one.index for one in earlier)
        for index in awaited:
            found.setdefault(index, []).append(state)
    return found


def _of_wait(waiting: Sequence[WorkerState], one: WorkerState, limit: float | None) -> str:
    first = waiting[0]
    seconds = max(
        [wait.seconds for wait in first.waits if one.index in wait.missing],
        default=first.unmoved,
    )
    has = "have" if len(waiting) > 1 else "has"
    busy = "which is not idle" if one.still < 1 else f"which has stood still for {one.still:.0f} s"
    end = "" if limit is None else f" All end when that is {limit:g} s."
    return (
        f"{listed([state.index for state in waiting])} {has} waited {seconds:.0f} s for "
        f"{named(one)}, {busy}: it is {whereabouts(one)}.{end} {stack_of(one)}"
    )


def _of_end(ended: Sequence[WorkerState], here: Sequence[WorkerState]) -> str:
    has = "have ended and wait" if len(ended) > 1 else "has ended and waits"
    seconds = max(state.ended for state in ended)
    return (
        f"{listed([state.index for state in ended])} {has}, for {seconds:.0f} s, for "
        f"{listed([state.index for state in here])} to end. The first is {whereabouts(here[0])}. "
        f"{stack_of(here[0])}"
    )


def _of_all(here: Sequence[WorkerState]) -> str:
    seconds = min(state.unmoved for state in here)
    return (
        f"all workers have been at the same place for {seconds:.0f} s: {whereabouts(here[0])}. "
        f"The first of them is {named(here[0])}. {stack_of(here[0])}"
    )
