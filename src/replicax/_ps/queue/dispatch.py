"""`Dispatcher`: the queue and the lanes of one strategy, from the first task to the end.

`ClusterCoordinator` is its public face, and `fit` uses it, too. The strategy's `Coordination` knows
what a task is, and how workers and servers are reached.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Protocol, final

from replicax._core.errors import CancelledError
from replicax._ps.queue.closures import Closure, ClosureQueue, RemoteValue
from replicax._ps.queue.gate import StalenessGate
from replicax._ps.queue.lanes import Lane, Lanes

if TYPE_CHECKING:
    from replicax._ps.queue.recovery import Recovery

_PATIENCE = 10.0  # seconds


class Coordination(Protocol):
    """What a strategy with parameter servers can do for its coordinator.

    Its lanes must not refer to it, or neither would ever be freed: the threads know the lanes.
    """

    num_workers: int
    max_staleness: int | None
    recoveries: Sequence[Recovery]  # servers that died and came back
    dispatcher: Dispatcher  # `Dispatcher(self)`, one for as long as this lives

    def task(self, fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Trace `fn` and return a task that a lane can run.

        TypeError if `fn` was not made by `rx.function`, ValueError if there is a `RemoteValue`
        among the arguments.
        """
        ...

    def lanes(self) -> list[Lane]:
        """Open the lanes to all workers; called once, when the first task is submitted."""
        ...

    def add_worker(self) -> list[Lane]:
        """Start one more worker and open the lanes to it."""
        ...

    def restore_server(self, server: int) -> None:
        """Wait until a server is back with its contents; else UnavailableError."""
        ...

    def worker_dataset(self, dataset_or_fn: Any, shard: str, num_splits: int | None = None) -> Any:
        """A data set of which each worker has an iterator of its own."""
        ...

    def staleness(self) -> Mapping[int, int]:
        """The numbers of updates by lateness."""
        ...

    def barrier(self) -> None:
        """Let later closures see all earlier updates."""
        ...


@final
class Dispatcher:
    """Hands tasks to workers; nothing is started before the first task.

    `gate` says which closures may run at the same time; None bounds only their staleness.
    """

    def __init__(self, coordination: Coordination, gate: StalenessGate | None = None) -> None:
        self._coordination = coordination
        self._queue = ClosureQueue()
        self._lanes = Lanes(
            self._queue,
            on_server_gone=_restorer(weakref.ref(coordination)),
            gate=gate or StalenessGate(coordination.max_staleness),
        )
        self._ids = itertools.count()
        self._lock = threading.RLock()  # opening lanes may use the public face
        self._started = False
        self._end: SimpleQueue[None] = SimpleQueue()
        self._closer: threading.Thread | None = None
        self._face: Callable[[], Any] = lambda: None

    def __len__(self) -> int:
        """How many tasks have not ended."""
        return len(self._queue)

    def work(self) -> dict[int, tuple[int, float]]:
        """For each worker, the number of tasks that ended on it, and their seconds."""
        return self._lanes.work.done()

    def depths(self) -> tuple[int, int]:
        """The number of tasks submitted; at each, those that had not ended, summed."""
        return self._queue.depths

    def shared(self, make: Callable[[], Any]) -> Any:
        """The one public object of this dispatcher: the result of `make()`, while it is alive."""
        with self._lock:
            face = self._face()
            if face is None:
                face = make()
                self._face = weakref.ref(face)
            return face

    def submit(self, task: Any, *, tag: int | None = None, movable: bool = False) -> RemoteValue:
        """Let a worker run a task, that of the tag if there is one; return its future value.

        If it is `movable`, another worker may run it if that one will not come back. Raises the
        error of an earlier task; then this one is not submitted.
        """
        self._start()
        closure = Closure(next(self._ids), task, tag=tag, movable=movable)
        self._queue.put(closure)
        return closure.value

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until all tasks have ended; False after `timeout` seconds."""
        return self._queue.wait(timeout)

    def done(self) -> bool:
        """Whether all tasks have ended."""
        return self._queue.done()

    def abandon(self) -> None:
        """Cancel all tasks and wait for running ones; no error stays pending."""
        if self._started:
            self._queue.mark_failed(None, CancelledError("it was given up"))
            with contextlib.suppress(Exception):
                self._queue.wait()

    def barrier(self) -> None:
        """Let later tasks see all updates of those that have ended."""
        if self._started:
            self.with_servers(self._coordination.barrier)

    def with_servers(self, call: Callable[[], Any]) -> Any:
        """`call()`, repeated after each server that it finds dead has been restored.

        `UnavailableError` if one will not come back.
        """
        return self._lanes.with_servers(call)

    def drop_worker(self, worker: int) -> None:
        """Disconnect a worker that is taken for dead; its closures are put back."""
        self._lanes.drop(worker)

    def add_worker(self) -> int:
        """Start one more worker, which takes tasks at once, and return its number."""
        self._start()
        lanes = self._coordination.add_worker()
        self._lanes.add(lanes)
        return lanes[0].worker

    def close(self) -> None:
        """Cancel all tasks, and end all threads; the cluster itself is the strategy's."""
        self._lanes.close()
        self._end.put(None)
        if self._closer:
            self._closer.join(_PATIENCE)

    def _start(self) -> None:
        with self._lock:
            if self._started:
                return
            self._lanes.add(self._coordination.lanes())
            self._started = True
            self._closer = threading.Thread(
                target=_close_when_told,
                args=(self._end, self._lanes),
                name="replicax-dispatcher",
                daemon=True,
            )
            self._closer.start()
        # Garbage may be collected in any thread at any time, even in one with the queue's lock,
        # so another thread closes the lanes, and is told without a lock.
        weakref.finalize(self, self._end.put, None).atexit = False
        # Threads that run Python while the interpreter ends can crash it.
        atexit.register(functools.partial(_close_if_there, weakref.ref(self._lanes)))


def _restorer(coordination: weakref.ref[Coordination]) -> Callable[[int], None]:
    """`restore_server` for threads that must not keep the strategy alive."""

    def restore(server: int) -> None:
        there = coordination()
        if there is not None:
            there.restore_server(server)

    return restore


def _close_if_there(lanes: weakref.ref[Lanes]) -> None:
    there = lanes()
    if there is not None:
        there.close()


def _close_when_told(end: SimpleQueue[None], lanes: Lanes) -> None:
    end.get()
    lanes.close()
