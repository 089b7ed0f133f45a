"""The rules of a run, the signals that end it, whose fault its end is, and its outcome, as data.

A missing worker also stops the others, so the first one to end is not always the one that failed.
Exit codes tell.
"""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, final

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import FrameType

    from replicax._core.errors import ProcessFailed
    from replicax._processes.metrics import Metrics
    from replicax.cluster_resolver import Task

# "I have saved my state: start me again." The code of TensorFlow's preemption handler.
PREEMPTED = 42
# "I was well, but lost another worker." The code of the watchdog, see `_control`.
LOST_ANOTHER = 70

_SECONDS_TO_SPEAK = 2.0
_WATCHED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Grace(NamedTuple):
    """How many seconds workers have to end before they are killed.

    After SIGTERM to us there is more time: it announces a preemption, and the workers may want to
    write a checkpoint.
    """

    after_failure: float = 5.0
    after_sigterm: float = 30.0

    def before_end(self, returncode: int | None) -> float:
        """Seconds that the others have after one has failed, before they are asked to end.

        They may report that they lost it. After a preemption all of them save their state.
        """
        if returncode == PREEMPTED:
            return self.after_sigterm
        return min(_SECONDS_TO_SPEAK, self.after_failure)


@final
@dataclass(frozen=True)
class Outcome:
    """How it ended: the failure of the worker to blame, the signal that ended us, or neither."""

    failure: ProcessFailed | None = None
    never_began: bool = False  # the failed worker, so that it would fail again
    signum: int | None = None
    timed_out: bool = False


@final
@dataclass(frozen=True)
class Rules:
    """The rules for all workers; the deadline is on the clock of `time.monotonic`.

    Without `captures` they have our standard streams. The end of the leader is the end of all;
    each of the others is started again by itself `revivals` times. `log_dir` is a folder for what
    they print; `metrics` notes what they report.
    """

    grace: Grace = Grace()
    prefix: bool = True
    captures: bool = True
    deadline: float = float("inf")
    leader: Task | None = None
    revivals: int = 0
    log_dir: str | None = None
    metrics: Metrics | None = None


@final
@dataclass(frozen=True)
class Signals:
    """The signals that this process received, recorded instead of obeyed."""

    received: list[int] = field(default_factory=list[int])

    @contextmanager
    def noted(self) -> Generator[Signals]:
        """Record signals in this context; only the main thread can do that.

        A signal that is ignored, as SIGHUP is under `nohup`, stays ignored.
        """
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        before = {
            signum: signal.signal(signum, self._note)
            for signum in _WATCHED_SIGNALS
            if signal.getsignal(signum) != signal.SIG_IGN
        }
        try:
            yield self
        finally:
            for signum, handler in before.items():
                signal.signal(signum, handler)

    def _note(self, signum: int, _frame: FrameType | None) -> None:
        self.received.append(signum)


@contextmanager
def sigterm_as_exit() -> Generator[None]:
    """Turn SIGTERM into SystemExit, so that `finally` clauses run before the end.

    A program that ignores or handles SIGTERM keeps its way; so does a thread, which cannot.
    """
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def leave(signum: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + signum)

    signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def tell(failure: ProcessFailed) -> str:
    """The sentence that reports a failure; a preemption is not called one."""
    if failure.returncode != PREEMPTED:
        return str(failure)
    return (
        f"{failure.who} was preempted: it has saved its state, to be started again (exit code 42)"
    )
