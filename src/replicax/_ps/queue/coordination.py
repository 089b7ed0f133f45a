"""`Coordination`: the coordinator of one strategy: tasks, workers, and servers that are restored.

`ClusterCoordinator` is its public face, and `fit` uses it, too.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, final

from replicax._control import Limits
from replicax._core.errors import CancelledError, UsageError
from replicax._fit.figures import WorkerStats
from replicax._input.context import InputContext
from replicax._ps.data.per_worker import PerWorkerDataset
from replicax._ps.hosts.contact import Heartbeat
from replicax._ps.queue.closures import Closure, ClosureQueue, RemoteValue
from replicax._ps.queue.lanes import Lane, Lanes, StalenessGate
from replicax._ps.queue.tasks import Tracer
from replicax._ps.queue.worker_lane import WorkerLane
from replicax._ps.store.servers import Early, closed

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from replicax._ps.hosts.cluster import Cluster
    from replicax._ps.hosts.contact import Dialer
    from replicax._ps.queue.recovery import Recoveries, Recovery
    from replicax._ps.store.servers import Client, SteadyClient
    from replicax._ps.store.store import ServerStore

_PATIENCE = 10.0  # seconds


@final
@dataclass(eq=False)
class Engine:
    """Shared by lanes: the connections to all members, and what is known of them.

    `steady` is the client that outlives servers and waits for them at the beginning; they may
    start `meanwhile`. A missing member is waited for `patience` seconds, or as long as the cluster
    waits. `platform` is the platform of workers on this machine, as JAX calls it; None asks one.
    Nothing here refers to the strategy, which the threads of lanes would keep alive.
    """

    cluster: Cluster
    dial: Dialer
    client: Client
    steady: SteadyClient
    store: ServerStore
    recoveries: Recoveries
    resolver: Any
    patience: float | None
    meanwhile: bool
    platform: str | None
    unused: list[int] = field(default_factory=list[int])
    barriers: int = 0  # before each, all closures had ended

    @property
    def epoch(self) -> str:
        """A text that changes whenever later closures have to see something new."""
        return f"{self.barriers}.{self.store.epoch}"

    def ready(self) -> None:
        """Wait until there are servers that have all variables."""
        self.steady.early.settle()


class Coordination:
    """The coordinator of one strategy: it hands tasks to workers, from the first task on.

    `adopt` takes variables that were made outside the scope. A gradient may be `max_staleness`
    updates late; None for any number. A worker has a lane for each of the `closures_in_flight`;
    with more than one, values are also pulled ahead. Lanes must not refer to this, or it would
    never be freed: the threads know the lanes.
    """

    def __init__(
        self,
        engine: Engine,
        adopt: Callable[[Sequence[Any]], None],
        scope: Callable[[], AbstractContextManager[Any]],
        *,
        max_staleness: int | None,
        closures_in_flight: int = 1,
    ) -> None:
        self._queue = ClosureQueue()
        there = weakref.ref(self)
        self._lanes = Lanes(
            self._queue,
            on_server_gone=lambda server: engine.recoveries.restore(server),
            gate=StalenessGate(max_staleness, ahead=closures_in_flight > 1),
        )
        self._ids = itertools.count()
        self._lock = threading.RLock()  # opening lanes may use the public face
        self._started = False
        self._end: SimpleQueue[None] = SimpleQueue()
        self._closer: threading.Thread | None = None
        self._face: Callable[[], Any] = lambda: None
        self.engine = engine
        self.closures_in_flight = closures_in_flight
        near = engine.platform is not None
        self.tracer = Tracer(engine.store, adopt, scope, lambda: self._platforms, near=near)
        engine.steady.outlive = lambda call: _outlive(there(), call)
        if engine.meanwhile:
            engine.steady.early = Early(engine.recoveries.meet)
        else:
            engine.recoveries.meet()
        self._heartbeat = Heartbeat(
            engine.cluster,
            engine.dial.bare,
            Limits.from_environ(),
            lambda role, index: _let_go(there(), role, index),
        )
        weakref.finalize(self, self._heartbeat.close)
        self._heartbeat.start()

    def __len__(self) -> int:
        """The number of tasks that have not ended."""
        return len(self._queue)

    def shared(self, make: Callable[[], Any]) -> Any:
        """Its one public face: the result of `make()`, while it is alive."""
        with self._lock:
            face = self._face()
            if face is None:
                face = make()
                self._face = weakref.ref(face)
            return face

    def submit(self, task: Any) -> RemoteValue:
        """Let a worker run a task; return its future value.

        Raises the error of an earlier task; then this one is not submitted.
        """
        self._start()
        closure = Closure(next(self._ids), task)
        self._queue.put(closure)
        return closure.value

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until all tasks have ended; False after `timeout` seconds."""
        return self._queue.wait(timeout)

    def done(self) -> bool:
        return self._queue.wait(0.0)

    def abandon(self) -> None:
        """Cancel all tasks and wait for running ones; no error stays pending."""
        if self._started:
            self._queue.mark_failed(None, CancelledError("it was given up"))
            with contextlib.suppress(Exception):
                self._queue.wait()

    def with_servers(self, call: Callable[[], Any]) -> Any:
        """`call()`, repeated after each server that it finds dead has been restored.

        `UnavailableError` if one will not come back.
        """
        return self._lanes.with_servers(call)

    def add_worker(self) -> int:
        """Start one more worker, which takes tasks at once, and return its number."""
        self._start()
        worker = self.engine.cluster.add_worker()
        self._lanes.add(self.lanes_of(worker))
        return worker

    def _start(self) -> None:
        with self._lock:
            if self._started:
                return
            workers = range(self.engine.cluster.num_workers)
            self._lanes.add([lane for worker in workers for lane in self.lanes_of(worker)])
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

    def task(self, fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return self.tracer.task(fn, args, dict(kwargs))

    def lanes_of(self, worker: int) -> list[Lane]:
        return [WorkerLane(self.engine, worker) for _ in range(self.closures_in_flight)]

    def barrier(self) -> None:
        """Let later tasks see all updates of those that have ended."""
        self.engine.barriers += 1

    @property
    def recoveries(self) -> Sequence[Recovery]:
        return tuple(self.engine.recoveries.records)

    def worker_dataset(
        self, dataset_or_fn: Any, shard: str = "off", num_splits: int | None = None
    ) -> PerWorkerDataset:
        """A data set of which each worker has a copy, or a share."""
        cluster = self.engine.cluster
        return PerWorkerDataset(
            dataset_or_fn,
            shard,
            num_splits=num_splits,
            workers=lambda: cluster.num_workers,
            unused=self.engine.unused,
        )

    def created_dataset(self, dataset_fn: Callable[[InputContext], Any], _: Any) -> Any:
        """The data set of a `DatasetCreator`: each worker makes one."""
        return self.worker_dataset(functools.partial(dataset_fn, InputContext()))

    def staleness(self) -> Counter[int]:
        """The numbers of applied gradients by lateness in updates."""
        self.engine.store.wait()
        self.engine.ready()
        client, found = self.engine.client, Counter[int]()
        asked = range(client.num_servers)
        for late in self.with_servers(
            lambda: [client.call(server, "stats").head["staleness"] for server in asked]
        ):
            found.update({int(updates): count for updates, count in late.items()})
        return found

    def described(self) -> str:
        """The numbers of workers and servers, and where they are."""
        there = self.engine.cluster
        counts = f"{there.num_workers} worker(s) and {there.num_servers} parameter server(s)"
        return f"{counts} {there.where}"

    def members(self) -> WorkerStats:
        """Counts of workers and servers, without a request to them."""
        return WorkerStats(
            closures=self._lanes.work.done(),
            staleness=self._heartbeat.staleness(),
            depths=self._queue.depths,
            unfinished=len(self),
        )

    def close(self) -> None:
        """End everything that was started: closures, links, members."""
        try:
            self.engine.steady.early.end(closed(0))
            self._lanes.stop()
            self._heartbeat.close()
            self.engine.client.close()
            self.engine.cluster.close()  # before the threads, of which some wait for its members
        finally:
            self._lanes.close()
            self._end.put(None)
            if self._closer:
                self._closer.join(_PATIENCE)

    @functools.cached_property
    def _platforms(self) -> tuple[str, ...]:
        """The platforms of the workers, asked of the first one."""
        platform = self.engine.platform or self._asked()
        return ({"gpu": "cuda"}.get(platform, platform),)  # as `jax.export` names it

    def _asked(self) -> str:
        engine = self.engine
        member = engine.cluster.member("worker", 0, timeout=engine.patience)
        with contextlib.closing(engine.dial(member.addresses)) as link:
            return link.call("ping").head["platform"]


def check_in_flight(closures: int) -> int:
    if isinstance(closures, bool) or not isinstance(closures, int) or closures < 1:
        raise UsageError.of(
            "closures_in_flight",
            "an integer of at least 1",
            closures,
            "With 2, a worker computes one closure while the other exchanges values with servers.",
        )
    return closures


def _outlive(there: Coordination | None, call: Callable[[], Any]) -> Any:
    return call() if there is None else there.with_servers(call)


def _let_go(there: Coordination | None, role: str, index: int) -> None:
    """Disconnect a silent member."""
    if there is not None and role == "worker":
        there._lanes.drop(index)
    elif there is not None:
        there.engine.client.drop(index)


def _close_if_there(lanes: weakref.ref[Lanes]) -> None:
    there = lanes()
    if there is not None:
        there.close()


def _close_when_told(end: SimpleQueue[None], lanes: Lanes) -> None:
    end.get()
    lanes.close()
