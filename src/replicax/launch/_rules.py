"""The rules of a run, the signals that end it, and its outcome, as data."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, final

from replicax.launch._culprit import PREEMPTED

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import FrameType

    from replicax._core.errors import ProcessFailed
    from replicax.cluster_resolver import Task

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
    signum: int | None = None
    timed_out: bool = False


@final
@dataclass(frozen=True)
class Rules:
    """What holds for all workers: the deadline is on the clock of `time.monotonic`.

    Without `captures` they have our standard streams. The end of the leader is the end of all;
    each of the others is started again by itself `revivals` times. `log_dir` is a folder for what
    they print.
    """

    grace: Grace = Grace()
    prefix: bool = True
    captures: bool = True
    deadline: float = float("inf")
    leader: Task | None = None
    revivals: int = 0
    log_dir: str | None = None


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
