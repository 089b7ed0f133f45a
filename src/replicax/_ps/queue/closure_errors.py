"""What the closure queue says when a closure cannot run, or does not count."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from replicax._core.errors import CancelledError, CoordinatorError, UnavailableError

if TYPE_CHECKING:
    from replicax._ps.queue.closures import Closure


def cancelled(closure: Closure, when: str, why: str) -> CancelledError:
    """What `fetch` raises for a closure that came to nothing because of something else."""
    return CancelledError(
        "A closure counts only if none has failed before it has ended. Received: closure "
        f"{closure.id}; {when} when {why}. "
        "The corresponding function is cancelled. Please reschedule the function."
    )


def deadly(closure: Closure) -> CoordinatorError:
    """The error of a closure that workers have died of."""
    died = ", ".join(f"worker {w} ({n}x)" for w, n in sorted(Counter(closure.deaths).items()))
    return CoordinatorError(
        f"A function must leave the worker alive that runs it. Received: closure {closure.id}, "
        f"which ran on a worker that died, {len(closure.deaths)} times: {died}. It is not tried "
        "again, because it would end one worker after the other. Look at the last lines of these "
        "workers; usual reasons are memory that ran out and native code that crashed."
    )


def worker_is_gone(closure: Closure) -> UnavailableError:
    """The error of a closure that was for one worker, which will not come back."""
    return UnavailableError(
        f"A closure for one worker needs that worker. Received: closure {closure.id} for worker "
        f"{closure.tag}, which is gone. It died and did not come back in time, and the closure "
        "uses what only this worker had. Schedule it for any worker, or restart the cluster.",
        f"/job:worker/task:{closure.tag}",
    )


def no_worker_is_left(worker: int, why: BaseException) -> UnavailableError:
    """The error of all closures once the last worker will not come back."""
    return UnavailableError(
        f"Closures need at least one worker. Received: worker {worker}, the last one, is gone "
        f"({first_line(why)}). None of them came back in time, so nothing can run. Restart the "
        "cluster from the latest checkpoint, or add a worker with `add_worker()`.",
        f"/job:worker/task:{worker}",
    )


def first_line(error: BaseException) -> str:
    """The kind of an error, and the first line of what it says."""
    said = str(error).partition("\n")[0]
    return f"{type(error).__name__}: {said}" if said else type(error).__name__
