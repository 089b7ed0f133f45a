"""`Lanes`: the threads that take closures and run them, also when workers and servers die.

`StalenessGate` says which closures may run at the same time, and of several threads that find a
thing broken, `Repairs` lets one repair it. `worker_lane.py` reaches a worker, and `closures.py`
orders closures.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Hashable, Sequence
from contextlib import contextmanager
from time import perf_counter as clock
from typing import TYPE_CHECKING, Any, Protocol, final

from replicax._core.errors import ClusterError, CoordinatorError, UnavailableError, UsageError

if TYPE_CHECKING:
    from replicax._ps.queue.closures import Closure, ClosureQueue

_log = logging.getLogger("replicax")
_LONGEST_PAUSE = 1.0  # seconds before another try with a worker that died while it was made ready
# Connections are closed, so a thread ends at once, unless it dials a machine that does not answer.
_SECONDS_TO_END = 2.0


@final
class StalenessGate:
    """Lets closures run at the same time as long as each update stays fresh enough.

    The age of an update is the number of other closures that ended between the admission of its own
    closure, when it may have read the variables, and that closure's end. A `bound` of 0 lets one
    closure run at a time; None sets no bound, and values may be pulled `ahead`, before the
    admission of the closure that uses them.
    """

    def __init__(self, bound: int | None, *, ahead: bool = True) -> None:
        check_bound(bound)
        self._bound = bound
        # With a bound, values pulled ahead would be older than the gate assumes.
        self.allows_ahead = ahead and bound is None
        self._changed = threading.Condition()
        self._waiting: deque[int] = deque()
        self._ended = 0
        self._ended_before: dict[int, int] = {}  # of running closures, as they were admitted
        self._closed = False

    def admit(self, closure: int) -> bool:
        """Wait until a closure may run; closures are admitted in order.

        False if the gate was closed instead.
        """
        if self._bound is None:
            return not self._closed
        with self._changed:
            self._waiting.append(closure)
            self._changed.wait_for(
                lambda: self._closed or (self._waiting[0] == closure and self._has_room())
            )
            self._waiting.remove(closure)
            if not self._closed:
                self._ended_before[closure] = self._ended
            self._changed.notify_all()  # the next one may fit in, too
            return not self._closed

    def finish(self, closure: int) -> None:
        """Note that a closure that was admitted has ended; it may have updated variables."""
        if self._bound is None:
            return
        with self._changed:
            if self._ended_before.pop(closure, None) is not None:
                self._ended += 1
                self._changed.notify_all()

    def close(self) -> None:
        """Admit no more closures, and tell those that wait."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _has_room(self) -> bool:
        # F runs, and aᵢ have ended since i ∈ F was admitted. In the worst case i ends after all
        # others: its update is then aᵢ + |F| old, the new one counted; the new one's is |F| old,
        # if all of F end before it. Who comes later asks the same, so no more has to be looked at.
        # The first in F has the largest aᵢ.
        assert self._bound is not None
        oldest = next(iter(self._ended_before.values()), self._ended)
        return self._ended - oldest + len(self._ended_before) <= self._bound


def check_bound(bound: int | None) -> None:
    """Refuse a value that does not bound staleness."""
    if bound is not None and (isinstance(bound, bool) or bound < 0):
        raise UsageError.of(
            "max_staleness",
            "None or an integer of at least 0",
            bound,
            "Pass 0 to run one step after the other, or None for no bound.",
        )


@final
class Work:
    """The number of closures that each worker has ended, and their times; for many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._done: dict[int, tuple[int, float]] = {}

    @contextmanager
    def of(self, worker: int) -> Generator[None, None, None]:
        """Measure a closure on a worker; one that raises does not count."""
        begin = clock()
        yield
        seconds = clock() - begin
        with self._lock:
            count, before = self._done.get(worker, (0, 0.0))
            self._done[worker] = count + 1, before + seconds

    def done(self) -> dict[int, tuple[int, float]]:
        """For each worker, the number of closures that ended and their seconds."""
        with self._lock:
            return dict(self._done)


class Lane(Protocol):
    """A connection to a worker, on which one closure runs at a time.

    A worker may have several. While one of them recovers it, `run` of another may still be under
    way, and has to end by `WorkerGone`.
    """

    worker: int

    def run(self, closure: Closure, *, more: bool) -> Any:
        """Run a closure and return its result; a worker or server that dies is an error.

        `WorkerGone` or `ServerGone` if one died before the closure had ended; `ComesLater` if it
        cannot run yet and has to wait behind all others. If there are `more` closures, it pays to
        pull variables ahead.
        """
        ...

    def recover(self) -> None:
        """Wait until the worker is back and give it its data again; all its lanes work then.

        `WorkerGone` if it died again, after which this is called again. `UnavailableError` if it
        will not come back.
        """
        ...

    def close(self) -> None:
        """Disconnect the worker: `run` and `recover` in other threads end soon."""
        ...


class ComesLater(Exception):
    """Raised by a lane for a closure that has to wait until others have ended."""


class WorkerGone(ClusterError):
    """Raised when a worker dies, or is silent for too long, while a closure runs on it.

    A closure that had not `started` cannot have been the cause.
    """

    def __init__(self, worker: int, why: str = "", started: bool = True) -> None:
        super().__init__(worker, why, started)  # so that it can be pickled
        self.worker = worker
        self.why = why
        self.started = started

    def __str__(self) -> str:
        return _gone(f"worker {self.worker}", self.why, "The closure runs again on another")


class ServerGone(ClusterError):
    """Raised when a parameter server dies, or is silent for too long, while a closure needs it."""

    def __init__(self, server: int, why: str = "") -> None:
        super().__init__(server, why)  # so that it can be pickled
        self.server = server
        self.why = why

    def __str__(self) -> str:
        return _gone(f"server {self.server}", self.why, "The closure runs again when it is back")


@final
class Lanes:
    """One thread for each lane, from `add` to `close`.

    `on_server_gone` restores the server of that number, or raises UnavailableError; one thread at a
    time calls it for each server.
    """

    def __init__(
        self,
        queue: ClosureQueue,
        *,
        on_server_gone: Callable[[int], None],
        gate: StalenessGate | None = None,
    ) -> None:
        self._queue = queue
        self._on_server_gone = on_server_gone
        self._gate = gate or StalenessGate(None)
        self._repairs = Repairs()
        self.work = Work()
        self._over = threading.Event()
        self._stopped_at = math.inf
        self._lock = threading.Lock()
        self._lanes: dict[int, list[Lane]] = {}
        self._threads: list[threading.Thread] = []

    def add(self, lanes: Sequence[Lane]) -> None:
        """Let lanes take closures from now on, also lanes of new workers."""
        with self._lock:
            if self._over.is_set():
                for lane in lanes:
                    lane.close()
                raise CoordinatorError(
                    f"Workers {sorted({lane.worker for lane in lanes})} cannot join: the "
                    "coordinator is closed. Make a new strategy and a new coordinator."
                )
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            for lane in lanes:
                self._begin(lane)

    def with_servers(self, call: Callable[[], Any]) -> Any:
        """`call()`, again after each server that it finds dead; UnavailableError if it stays so."""
        while True:
            since = self._repairs.now()
            try:
                return call()
            except ServerGone as gone:
                server = gone.server
            self._repairs.repair(
                ("server", server), since, lambda s=server: self._on_server_gone(s)
            )

    def drop(self, worker: int) -> None:
        """Disconnect a worker that is taken for dead; its closures are put back."""
        with self._lock:
            lanes = list(self._lanes.get(worker, ()))
        for lane in lanes:
            lane.close()

    def stop(self) -> None:
        """Cancel all closures and end all connections, on which threads wait; once."""
        if self._over.is_set():
            return
        self._stopped_at = time.monotonic()
        self._over.set()
        self._queue.close()
        self._gate.close()
        with self._lock:
            lanes = [lane for mine in self._lanes.values() for lane in mine]
            self._lanes.clear()
        for lane in lanes:
            lane.close()

    def close(self, timeout: float = _SECONDS_TO_END) -> None:
        """Stop, and wait `timeout` seconds at most for all threads; once."""
        self.stop()
        with self._lock:
            threads, self._threads = self._threads, []
        others = [thread for thread in threads if thread is not threading.current_thread()]
        for thread in others:
            thread.join(max(0.0, self._stopped_at + timeout - time.monotonic()))
        left = [thread.name for thread in others if thread.is_alive()]
        if left:
            _log.warning("Threads that still wait for workers or servers: %s.", ", ".join(left))

    def _begin(self, lane: Lane) -> None:
        mine = self._lanes.setdefault(lane.worker, [])
        name = f"replicax-lane-{lane.worker}-{len(mine)}"
        mine.append(lane)
        self._queue.admit(lane.worker)
        thread = threading.Thread(target=self._serve, args=(lane,), name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _serve(self, lane: Lane) -> None:
        """Run closures until the worker is retired or all is over."""
        try:
            while True:
                self._repairs.wait(("worker", lane.worker))
                closure = self._queue.get(lane.worker)
                if closure is None:
                    return
                if self._may_run(lane, closure):
                    self._run(lane, closure)
                    if self._over.is_set():
                        lane.close()  # it may have reconnected after the lanes were closed
                else:
                    self._gate.finish(closure.id)
                    self._queue.put_back(closure)
                del closure  # a waiting thread must not keep the strategy alive
        except BaseException as error:  # a thread that died silently would hang the program
            self._queue.mark_failed(None, error)

    def _may_run(self, lane: Lane, closure: Closure) -> bool:
        """Wait at the gate, then check what has happened since the closure was taken."""
        return (
            self._gate.admit(closure.id)
            and not self._queue.is_stopping
            and not self._repairs.is_underway(("worker", lane.worker))  # found dead elsewhere
        )

    def _run(self, lane: Lane, closure: Closure) -> None:
        """Run one closure and settle its value; recover a dead worker or server."""
        since = self._repairs.now()
        try:
            try:
                more = self._gate.allows_ahead and self._queue.has_more
                with self.work.of(lane.worker):
                    result = lane.run(closure, more=more)
            finally:
                self._gate.finish(closure.id)
        except WorkerGone as gone:
            died = lane.worker if gone.started else None
            # Put back first, so that other workers can run it, but not before its other lanes know
            # that the worker is dead, or they would take it.
            self._repairs.repair(
                ("worker", lane.worker),
                since,
                lambda: self._recover(lane),
                first=lambda: self._queue.put_back(closure, died=died),
            )
        except ServerGone as gone:
            self._queue.put_back(closure)
            self._repair_server(gone.server, since)
        except ComesLater:
            self._queue.put_back(closure, first=False)
        except BaseException as error:
            self._queue.mark_failed(closure, error)
        else:
            self._queue.mark_finished(closure, result)

    def _recover(self, lane: Lane) -> None:
        """Get a worker back, however often it dies meanwhile, or retire it."""
        pause = _LONGEST_PAUSE / 64
        while not self._over.is_set():
            since = self._repairs.now()
            try:
                lane.recover()
                return
            except WorkerGone:
                pass
            except ServerGone as gone:
                self._repair_server(gone.server, since)
            except BaseException as error:
                if not isinstance(error, UnavailableError):
                    self._queue.mark_failed(None, error)
                self._retire(lane.worker, error)
                return
            self._over.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _retire(self, worker: int, why: BaseException) -> None:
        if self._over.is_set():
            return
        with self._lock:
            lanes = self._lanes.pop(worker, None)
            others = "; the others go on" if self._lanes else ""
        if lanes is None:  # another lane of the worker has said so
            return
        _log.warning("Worker %d is left out%s. %s", worker, others, why)
        self._queue.retire(worker, why)
        for lane in lanes:
            lane.close()

    def _repair_server(self, server: int, since: int) -> None:
        """Get a server back, or fail all closures."""

        def restore() -> None:
            try:
                if not self._over.is_set():
                    self._on_server_gone(server)
            except BaseException as error:
                self._queue.mark_failed(None, error)

        self._repairs.repair(("server", server), since, restore)


def _gone(who: str, why: str, then: str) -> str:
    return (
        f"The closure was interrupted: {who} is gone{': ' + why if why else ''}. {then}. If this "
        "happens often, check the last lines it printed."
    )


@final
class Repairs:
    """One repair of each thing at a time, and none of a thing that was repaired meanwhile.

    A thread notes the time (`now`) before it uses a thing. If it finds it broken, and the thing was
    repaired after that time, the thread has seen the old failure, not a new one.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._underway: set[Hashable] = set()
        self._repaired_at: dict[Hashable, int] = {}
        self._time = 0

    def now(self) -> int:
        """The time, counted in repairs."""
        return self._time

    def is_underway(self, thing: Hashable) -> bool:
        """Whether a repair of the thing is under way; read without a lock."""
        return thing in self._underway

    def wait(self, thing: Hashable) -> None:
        """Wait until no repair of the thing is under way."""
        if thing in self._underway:
            with self._changed:
                self._changed.wait_for(lambda: thing not in self._underway)

    def repair(
        self,
        thing: Hashable,
        since: int,
        work: Callable[[], None],
        *,
        first: Callable[[], None] = lambda: None,
    ) -> None:
        """Repair the thing by `work`, or wait for the thread that does.

        The thing was last used after the time `since`. If `work` raises, this thread gets the
        error, and the others go on and find out by themselves. `first` is called in any case, once
        the thing is known to be broken.
        """
        with self._changed:
            is_mine = thing not in self._underway and self._repaired_at.get(thing, -1) <= since
            if is_mine:
                self._underway.add(thing)
        try:
            first()
            if is_mine:
                work()
            else:
                self.wait(thing)
        finally:
            if is_mine:
                self._end(thing)

    def _end(self, thing: Hashable) -> None:
        with self._changed:
            self._time += 1
            self._repaired_at[thing] = self._time
            self._underway.discard(thing)
            self._changed.notify_all()
