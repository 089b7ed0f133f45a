"""Notices on standard error about long waits, before any worker is judged lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, final

from replicax._control._message import listed, named, stack_of, whereabouts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from replicax._control._limits import Limits
    from replicax._control._states import WorkerState

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
    awaited = False
    for one in here:
        waiting = [state for state in here if _waits(state, one, silence)]
        if waiting:
            awaited = True
            yield f"wait {one.index}", _of_wait(waiting, one, limits.timeout)
    if ended and here:
        numbers = [state.index for state in here]
        yield f"end {numbers}", _of_end(ended, here)
    if len(here) > 1 and not awaited and min(state.unmoved for state in here) >= silence:
        yield "all", _of_all(here)


def _waits(state: WorkerState, one: WorkerState, silence: float) -> bool:
    return state.waits_for(one, silence) or state.is_ahead_of(one, silence)


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
