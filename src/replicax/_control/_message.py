"""The text of a verdict: the lost worker, its position, the workers that wait, and the fix."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from replicax._core.errors import WorkerLost

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replicax._control._limits import Limits
    from replicax._control._rules import Reason, Verdict
    from replicax._control._states import WorkerState

EXIT_CODE = 70  # EX_SOFTWARE of sysexits.h: neither Python nor a shell ends a process with it

_RULE = "A cluster goes on only with all of its workers."
_WHY = f"What is left cannot finish a step, so every worker ends, with exit code {EXIT_CODE}."
_WAITERS_SHOWN = 3
_OBSERVED: dict[Reason, str] = {
    "altered": "had a message altered on its connection with the chief",
    "failed": "failed with an unhandled exception",
    "died": "died: its connection closed without a farewell",
    "silent": "fell silent: nothing was heard of it for {silence:g} s",
    "ended": "ended while others needed it",
    "diverged": "took other steps than the rest: collectives would mix their numbers",
    "apart": "wait for each other at different places of the program, which is a dead-lock",
    "timeout": "was waited for longer than the limit of {timeout:g} s",
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
    "timeout": "The stack says what it does. If that may take so long, raise RX_WAIT_LIMIT_SECONDS "
    "(0: no limit), or timeout_seconds of CommunicationOptions if that is set.",
}


def worker_lost(verdict: Verdict, states: Sequence[WorkerState], limits: Limits) -> WorkerLost:
    """The error of a verdict, with its text."""
    culprits = [states[index] for index in verdict.culprits]
    observed = _OBSERVED[verdict.reason].format(silence=limits.silence, timeout=limits.timeout or 0)
    lines = [
        f"{_RULE} Received: {listed(verdict.culprits)} {observed}.",
        *(text for state in culprits for text in _of_culprit(state, verdict.reason)),
        *_of_waiters(waiters(verdict, states)),
        f"{_WHY} {_FIXES[verdict.reason]}",
        # Repeated, because `replicax run` and many logs show only the last lines.
        f"Lost: {_who(culprits)}: {observed.partition(':')[0]}.",
    ]
    return WorkerLost("\n".join(lines), verdict.culprits)


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
    if len(culprits) > _WAITERS_SHOWN:
        return listed([state.index for state in culprits])
    return " and ".join(map(named, culprits))


def _of_culprit(state: WorkerState, reason: Reason) -> list[str]:
    latest = ", when last heard of" if reason in ("altered", "died", "silent") else ""
    about = f"  {named(state)} was {whereabouts(state)}{latest}."
    if state.error:
        return [f"{about} It said:", textwrap.indent(state.error, "      ")]
    return [f"{about} {stack_of(state)}"]


def _of_waiters(found: Sequence[WorkerState]) -> list[str]:
    shown = [
        f"  {named(state)} waits for it {whereabouts(state)}. {stack_of(state)}"
        for state in found[:_WAITERS_SHOWN]
    ]
    rest = [state.index for state in found[_WAITERS_SHOWN:]]
    return [
        *shown,
        *([f"  So {'do' if len(rest) > 1 else 'does'} {listed(rest)}."] if rest else []),
    ]
