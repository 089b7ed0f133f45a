"""Which worker is to blame when several end one after the other; exit codes tell.

A missing worker also stops the others, so the first one to end is not always the one that failed.
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
    """The part of a worker that the choice of a culprit needs."""

    returncode: int | None


_W = TypeVar("_W", bound=Ended)


def choose_culprit(culprit: _W | None, failed: Sequence[_W], *, asked: bool) -> _W | None:
    """Choose between the culprit so far and workers that were just seen to have failed.

    A worker that ends because it was asked to is not at fault.
    """
    # Of several, prefer one that was killed: the others noticed that it was missing.
    for worker in sorted(failed, key=lambda worker: (worker.returncode or 0) > 0):
        if culprit is None or (
            culprit.returncode == LOST_ANOTHER and _is_own_fault(worker.returncode or 0, asked)
        ):
            culprit = worker
    return culprit


def tell(failure: ProcessFailed) -> str:
    """The sentence that reports a failure; a preemption is not called one."""
    if failure.returncode != PREEMPTED:
        return str(failure)
    return (
        f"{failure.who} was preempted: it has saved its state, to be started again (exit code 42)"
    )


def _is_own_fault(returncode: int, asked: bool) -> bool:
    obeyed = asked and (returncode < 0 or returncode == 128 + signal.SIGTERM)
    return returncode != LOST_ANOTHER and not obeyed
