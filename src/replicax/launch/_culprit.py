"""Whose fault it was, when workers of a cluster end one after the other. Pure: codes are compared.

A worker that is missing stops the others, too. So the first that has ended is not always the one
that failed.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from replicax._core.errors import ProcessFailed

# "I have saved my state: start me again." The code of TensorFlow's preemption handler.
PREEMPTED = 42
# "I was well, but lost another worker." The code of the watchdog, see `_control`.
LOST_ANOTHER = 70


class Ended(Protocol):
    """What is asked about a worker."""

    returncode: int | None


_W = TypeVar("_W", bound=Ended)


def choose_culprit(culprit: _W | None, failed: Sequence[_W], *, asked: bool) -> _W | None:
    """Choose between the culprit so far and workers that were just seen to have failed.

    It is no fault to end when `asked` to.
    """
    # Of several at once, one that was killed: the others noticed that it was missing.
    for worker in sorted(failed, key=lambda worker: (worker.returncode or 0) > 0):
        if culprit is None or (
            culprit.returncode == LOST_ANOTHER and _is_own_fault(worker.returncode or 0, asked)
        ):
            culprit = worker
    return culprit


def tell(failure: ProcessFailed) -> str:
    """What to say of a failure; a preemption is none."""
    if failure.returncode != PREEMPTED:
        return str(failure)
    return (
        f"{failure.who} was preempted: it has saved its state, to be started again (exit code 42)"
    )


def _is_own_fault(returncode: int, asked: bool) -> bool:
    obeyed = asked and (returncode < 0 or returncode == 128 + signal.SIGTERM)
    return returncode != LOST_ANOTHER and not obeyed
