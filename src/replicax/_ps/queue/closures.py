"""`ClosureQueue`: what is scheduled, by the rules of `schedule`, `join` and `done`.

1. First in, first out; a closure whose worker died is put back in front: each runs at least once.
2. The first error wins. What waits is cancelled at once, what runs is waited for, and its result
   is cancelled too.
3. The error is raised once, by the next `put` or `wait`; then nothing runs any more, and the queue
   can be used again.

`lanes.py` has the threads that take closures.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any, final

from replicax._core.errors import CancelledError, CoordinatorError, UnavailableError
from replicax._ps.queue.remote_value import RemoteValue as RemoteValue

CAPACITY = 256 * 1024


@final
@dataclass(eq=False, slots=True)
class Closure:
    """Something to run once on a worker."""

    id: int
    task: Any
    value: RemoteValue = field(default_factory=RemoteValue)
    deaths: list[int] = field(default_factory=list)  # the workers that died while they ran it
    newest: int = -1  # the newest closure scheduled when it was taken


@final
class ClosureQueue:
    """Closures on their way from the user's program to the lanes and back; for many threads.

    `capacity` is how many may wait before `put` blocks. A closure fails when more
    than `max_deaths` workers have died of it.
    """

    def __init__(self, *, capacity: int = CAPACITY, max_deaths: int = 3) -> None:
        self._capacity = capacity
        self._max_deaths = max_deaths
        self._lock = threading.Lock()
        self._ready = threading.Condition(self._lock)  # there is something for a lane
        self._room = threading.Condition(self._lock)  # there is room for one more
        self._calm = threading.Condition(self._lock)  # nothing runs, or there is an error
        self._line: deque[Closure] = deque()  # those that wait
        self._workers: set[int] = set()  # that take closures
        self._retired: set[int] = set()
        self._running: dict[int, Closure] = {}
        self._newest = -1
        # Closures put, and the sum, over each `put`, of the others that had not ended.
        self.depths = (0, 0)
        self._error: BaseException | None = None
        self._why = ""  # why closures are cancelled
        self._deserted: UnavailableError | None = None
        self._closed = False

    def __len__(self) -> int:
        """The number of closures that wait or run."""
        with self._lock:
            return len(self._line) + len(self._running)

    @property
    def is_stopping(self) -> bool:
        """Whether closures that have not begun should not begin; read without a lock."""
        return self._error is not None or self._closed

    def put(self, closure: Closure) -> None:
        """Let a closure wait for a worker; block until there is room.

        Raises the error of an earlier closure; then this one is not scheduled. `UnavailableError`
        if no worker can ever run it.
        """
        with self._lock:
            self._room.wait_for(
                lambda: len(self._line) < self._capacity or self.is_stopping or self._deserted
            )
            self._raise_error()
            if self._closed:
                raise CoordinatorError(
                    f"Cannot schedule closure {closure.id}: the coordinator is closed. Make a new "
                    "strategy and a new coordinator."
                )
            if self._deserted:
                raise self._deserted.with_traceback(None)
            self._newest = max(self._newest, closure.id)
            count, others = self.depths
            self.depths = count + 1, others + len(self._line) + len(self._running)
            self._line.append(closure)
            self._ready.notify()

    def get(self, worker: int, timeout: float | None = None) -> Closure | None:
        """Take the next closure for a worker, which then runs it; block until there is one.

        None after `timeout` seconds, or if the worker was retired or all is over.
        """
        with self._lock:
            self._ready.wait_for(
                lambda: self._line or self._closed or worker in self._retired, timeout
            )
            if self._closed or worker in self._retired or not self._line:
                return None
            closure = self._line.popleft()
            closure.newest = self._newest
            self._running[closure.id] = closure
            self._room.notify()
            return closure

    @property
    def has_more(self) -> bool:
        """Whether another closure waits; read without a lock."""
        return bool(self._line)

    def put_back(self, closure: Closure, *, died: int | None = None, first: bool = True) -> None:
        """Give back a closure that was taken and has not ended.

        It waits again, before all others or behind them, unless an error has cancelled it. `died`
        is the worker that seems to have died of it.
        """
        with self._lock:
            self._running.pop(closure.id, None)
            if died is not None:
                closure.deaths.append(died)
            if self._deserted:
                closure.value.fail(self._deserted)
            elif self.is_stopping:
                closure.value.fail(_cancelled(closure, "it was put back", self._why))
            elif len(closure.deaths) > self._max_deaths:
                self._fail(_deadly(closure), [closure])
            else:
                (self._line.appendleft if first else self._line.append)(closure)
                self._ready.notify()
            self._tell_waiting()

    def mark_finished(self, closure: Closure, result: Any) -> None:
        """Note that a closure has ended well; its result is cancelled if another closure failed."""
        with self._lock:
            self._running.pop(closure.id, None)
            if self._error is None:
                closure.value.fulfil(result)
            else:
                closure.value.fail(_cancelled(closure, "it ran", self._why))
            self._tell_waiting()

    def mark_failed(self, closure: Closure | None, error: BaseException) -> None:
        """Note that a closure has raised, or, with None, that none can run.

        The first error cancels all closures, and is raised once.
        """
        with self._lock:
            if closure is not None:
                self._running.pop(closure.id, None)
            self._fail(error, [closure] if closure else [])

    def admit(self, worker: int) -> None:
        with self._lock:
            self._workers.add(worker)
            self._retired.discard(worker)
            self._deserted = None

    def retire(self, worker: int, why: BaseException) -> None:
        """Note that a worker will not come back.

        If no worker is left, all closures fail, now and when they are scheduled.
        """
        with self._lock:
            self._workers.discard(worker)
            self._retired.add(worker)
            if not self._workers:
                self._deserted = _no_worker_is_left(worker, why)
                self._fail(self._deserted, self._cleared())
            self._ready.notify_all()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until all closures have ended; False after `timeout` seconds.

        Raises the first error that a closure raised, once.
        """
        with self._lock:
            self._calm.wait_for(lambda: self._error is not None or self._is_idle(), timeout)
            self._raise_error()
            return self._is_idle()

    def close(self) -> None:
        """Cancel everything, and hand out no more closures."""
        with self._lock:
            self._closed = True
            open_ones = [*self._running.values(), *self._cleared()]
            self._running.clear()
            self._why = "the coordinator was closed"
            for closure in open_ones:
                error = _cancelled(closure, "it waited or ran", self._why)
                closure.value.fail(error)
                self._error = error if self._error is None else self._error
            for condition in (self._ready, self._room, self._calm):
                condition.notify_all()

    def _is_idle(self) -> bool:
        return not self._running and not self._line

    def _cleared(self) -> list[Closure]:
        """Take all that wait, in order."""
        waiting = list(self._line)
        self._line.clear()
        return waiting

    def _tell_waiting(self) -> None:
        # Not at every pause, which would wake the program's thread between any two closures.
        if not self._running and (self._error is not None or not self._line):
            self._calm.notify_all()

    def _fail(self, error: BaseException, closures: list[Closure]) -> None:
        """Let `closures` fail with `error`, and cancel what waits if it is the first error."""
        for closure in closures:
            closure.value.fail(error)
        if self._error is None:
            self._error, self._why = error, f"another failed ({_first_line(error)})"
            for closure in self._cleared():
                closure.value.fail(_cancelled(closure, "it waited", self._why))
        self._room.notify_all()
        self._calm.notify_all()

    def _raise_error(self) -> None:
        """Raise the error, if there is one, once nothing runs any more."""
        if self._error is not None:
            self._calm.wait_for(lambda: not self._running)
        error, self._error = self._error, None
        if error is not None:  # another thread may have raised it meanwhile
            raise error


def _cancelled(closure: Closure, when: str, why: str) -> CancelledError:
    """The error that `fetch` raises for a closure that was cancelled."""
    return CancelledError(
        f"Closure {closure.id} was cancelled: {when} when {why}. The corresponding function is "
        "cancelled. Please reschedule the function."
    )


def _deadly(closure: Closure) -> CoordinatorError:
    """The error of a closure that workers have died of."""
    died = ", ".join(f"worker {w} ({n}x)" for w, n in sorted(Counter(closure.deaths).items()))
    return CoordinatorError(
        f"Closure {closure.id} is not tried again: {len(closure.deaths)} times its worker died "
        f"while it ran: {died}. Check the last lines of these workers for memory that ran out or "
        "native code that crashed."
    )


def _no_worker_is_left(worker: int, why: BaseException) -> UnavailableError:
    """The error of all closures once the last worker will not come back."""
    return UnavailableError(
        f"No worker is left to run closures: worker {worker}, the last one, is gone "
        f"({_first_line(why)}). Restart the cluster from the latest checkpoint, or add a worker "
        "with `add_worker()`.",
        f"/job:worker/task:{worker}",
    )


def _first_line(error: BaseException) -> str:
    """The kind of an error, and the first line of its message."""
    message = str(error).partition("\n")[0].rstrip(": ")
    return f"{type(error).__name__}: {message}" if message else type(error).__name__
