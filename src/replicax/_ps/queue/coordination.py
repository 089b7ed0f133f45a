"""What a strategy does for its `ClusterCoordinator`: tasks, lanes to workers, servers restored."""

from __future__ import annotations

import functools
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

from replicax._core.errors import UsageError
from replicax._fit.figures import Members
from replicax._input.context import InputContext
from replicax._ps.data.per_worker import PerWorkerDataset, Unused
from replicax._ps.hosts.pulse import Pulse
from replicax._ps.queue.dispatch import Dispatcher
from replicax._ps.queue.gate import StalenessGate
from replicax._ps.queue.tasks import Tracer
from replicax._ps.queue.worker_lane import WorkerLane

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from replicax._control import Limits
    from replicax._ps.hosts.cluster import Cluster
    from replicax._ps.hosts.contact import Dialer
    from replicax._ps.queue.lanes import Lane
    from replicax._ps.queue.recovery import Recoveries, Recovery
    from replicax._ps.store.servers import Client, SteadyClient
    from replicax._ps.store.store import ServerStore


@final
class Engine:
    """Shared by lanes: the connections to all members, and what is known of them.

    `steady` is the client that outlives servers and waits for them at the beginning. A missing
    member is waited for `patience` seconds, or as long as the cluster waits. `platform` is the
    platform of workers on this machine, as JAX calls it; None asks one of them.
    """

    def __init__(
        self,
        cluster: Cluster,
        dial: Dialer,
        client: Client,
        store: ServerStore,
        recoveries: Recoveries,
        *,
        steady: SteadyClient,
        patience: float | None,
        platform: str | None = None,
    ) -> None:
        self.platform, self._steady = platform, steady
        self.cluster, self.dial, self.client, self.store = cluster, dial, client, store
        self.recoveries = recoveries
        self.patience = patience
        self.unused = Unused()
        self._barrier = 0

    @property
    def epoch(self) -> str:
        """A text that changes whenever later closures have to see something new."""
        return f"{self._barrier}.{self.store.epoch}"

    def barrier(self) -> None:
        """Let later closures see the updates of all that have ended."""
        self._barrier += 1

    def ready(self) -> None:
        """Wait until there are servers that have all variables."""
        self._steady.ready()

    def wait_no_more(self) -> None:
        """Raise an error in threads that still wait for servers to start."""
        self._steady.close()


@final
class Coordination:
    """The engine of one strategy, as its coordinator sees it.

    `adopt` takes variables that were made outside the scope. A gradient may be `max_staleness`
    updates late; None for any number. A worker has a lane for each of the `closures_in_flight`;
    with more than one, values are also pulled ahead.
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
        self.engine = engine
        self.max_staleness, self.closures_in_flight = max_staleness, closures_in_flight
        gate = StalenessGate(max_staleness, ahead=closures_in_flight > 1)
        near = engine.platform is not None
        self.tracer = Tracer(engine.store, adopt, scope, self._platforms, near=near)
        self.dispatcher = Dispatcher(self, gate)  # pyright: ignore[reportArgumentType]
        self._found: tuple[str, ...] | None = None
        self._watch: Pulse | None = None

    @property
    def num_workers(self) -> int:
        """How many workers there are."""
        return self.engine.cluster.num_workers

    def task(self, fn: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The task of a call of `fn`."""
        return self.tracer.task(fn, args, dict(kwargs))

    def barrier(self) -> None:
        """Let later closures see the updates of all that have ended."""
        self.engine.barrier()

    def lanes(self) -> list[Lane]:
        """The lanes to all workers."""
        return [lane for worker in range(self.num_workers) for lane in self._lanes_of(worker)]

    def add_worker(self) -> list[Lane]:
        """Start one more worker and return the lanes to it."""
        return self._lanes_of(self.engine.cluster.add_worker())

    def restore_server(self, server: int) -> None:
        """Wait until a server is back."""
        self.engine.recoveries.restore(server)

    @property
    def recoveries(self) -> Sequence[Recovery]:
        """The servers that died and came back."""
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
        for late in self.dispatcher.with_servers(
            lambda: [client.call(server, "stats").head["staleness"] for server in asked]
        ):
            found.update({int(updates): count for updates, count in late.items()})
        return found

    def members(self) -> Members:
        """What is known of workers and servers, without asking them."""
        return Members(
            closures=self.dispatcher.work(),
            staleness=self._watch.staleness() if self._watch else {},
            depths=self.dispatcher.depths(),
            unfinished=len(self.dispatcher),
        )

    def begin(self, limits: Limits) -> None:
        """Start watching all members."""
        silent = _on_silence(weakref.ref(self))
        pulse = Pulse(self.engine.cluster, self.engine.dial.bare, limits, silent)
        weakref.finalize(self, pulse.close)
        pulse.start()
        self._watch = pulse

    def close(self) -> None:
        """End everything that was started: closures, links, members."""
        self.engine.wait_no_more()
        self.dispatcher.close()
        if self._watch is not None:
            self._watch.close()
        self.engine.client.close()
        self.engine.cluster.close()

    def _lanes_of(self, worker: int) -> list[Lane]:
        return [WorkerLane(self.engine, worker) for _ in range(self.closures_in_flight)]

    def _platforms(self) -> tuple[str, ...]:
        """The platforms of the workers, asked of the first one."""
        if self._found is None:
            self._found = (_export_name(self.engine.platform or self._asked()),)
        return self._found

    def _asked(self) -> str:
        engine = self.engine
        member = engine.cluster.member("worker", 0, timeout=engine.patience)
        link = engine.dial(member.addresses)
        platform = link.call("ping").head["platform"]
        link.close()
        return platform


def check_in_flight(closures: int) -> int:
    """The number of closures that a worker may have under way."""
    if isinstance(closures, bool) or not isinstance(closures, int) or closures < 1:
        raise UsageError(
            "A worker has at least one closure under way. Received: "
            f"closures_in_flight={closures!r}. Pass 1, as TensorFlow does it, or 2, so that one "
            "computes while the other exchanges values with servers."
        )
    return closures


def _on_silence(coordination: weakref.ref[Coordination]) -> Callable[[str, int], None]:
    """The reaction to a silent member, for a thread that must not keep the strategy alive."""

    def let_go(role: str, index: int) -> None:
        there = coordination()
        if there is not None and role == "worker":
            there.dispatcher.drop_worker(index)
        elif there is not None:
            there.engine.client.drop(index)

    return let_go


def _export_name(platform: str) -> str:
    """The name of a backend for `jax.export`."""
    return {"gpu": "cuda"}.get(platform, platform)
