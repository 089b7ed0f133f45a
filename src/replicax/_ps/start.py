"""Starting the engine of a `ParameterServerStrategy`: a cluster, a client, a store."""

from __future__ import annotations

import os
import shutil
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import cloudpickle

from replicax._control import Limits
from replicax._core.errors import UsageError
from replicax._ps.client import Client
from replicax._ps.coordination import Coordination, Engine
from replicax._ps.dialer import Dialer
from replicax._ps.keeping import keeping, own_folder
from replicax._ps.recovery import Recoveries
from replicax._ps.scaling import scaling
from replicax._ps.steady import SteadyClient
from replicax._ps.store import ServerStore
from replicax._ps.thread_cluster import ThreadCluster

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from replicax._ps.cluster import Cluster
    from replicax._ps.dispatch import Dispatcher

PATIENCE = 120.0  # seconds for a member to come back


@dataclass
class EngineRoom:
    """What a strategy is made of."""

    cluster: Cluster
    dial: Dialer
    client: Client
    steady: SteadyClient
    store: ServerStore
    resolver: Any
    settings: dict[str, Any]

    def coordination(
        self,
        adopt: Callable[[Sequence[Any]], None],
        scope: Callable[[], AbstractContextManager[Any]],
        *,
        max_staleness: int | None,
        in_rounds: bool,
    ) -> Coordination:
        """What the coordinator works with."""
        limits = Limits.from_environ()
        recoveries = Recoveries(
            self.cluster,
            self.client,
            self.steady.changes,
            replicas=bool(self.settings["replicas"]),
            patience=PATIENCE,
        )
        recoveries.meet()
        engine = Engine(
            self.cluster, self.dial, self.client, self.store, recoveries, patience=PATIENCE
        )
        coordination = Coordination(
            engine, adopt, scope, max_staleness=max_staleness, in_rounds=in_rounds
        )
        self.steady.outlive = _outliving(weakref.ref(coordination.dispatcher))
        coordination.begin(limits)
        return coordination


def start(
    resolver: Any,
    partitioner: Any,
    *,
    num_workers: int | None,
    num_ps: int | None,
    engine: str | None,
    address: str | None,
    settings: dict[str, Any],
    **kept: Any,
) -> EngineRoom:
    """Start a cluster, or find the one that is there.

    Args:
        resolver: Who is in the cluster.
        partitioner: Divides variables.
        num_workers: How many workers.
        num_ps: How many servers.
        engine: What runs them.
        address: That of a Ray cluster.
        settings: What servers are told.
        **kept: See `keeping`.
    """
    scaling(settings["staleness_scaling"])
    if engine not in (None, "ray", "threads"):
        raise UsageError(
            "The engine of a parameter-server strategy is 'ray' or 'threads'. Received: "
            f"engine={engine!r}. Ray runs servers and workers as processes, threads run them "
            "here. Leave it out for Ray."
        )
    servers, workers = sizes(num_ps, num_workers)
    settings = {**settings, **keeping(num_servers=servers, **kept)}
    folder = own_folder(settings)
    cluster: Any = ThreadCluster(servers, workers)
    if folder is not None:
        weakref.finalize(cluster, shutil.rmtree, folder, ignore_errors=True)
    hello, told = {"role": "chief"}, cloudpickle.dumps(settings)
    dial = Dialer(cluster.secret, settings["run"], hello, told)
    addresses = [cluster.member("server", k).addresses for k in range(cluster.num_servers)]
    client = Client(dial, addresses)
    steady = SteadyClient(client)
    store = ServerStore(steady, partitioner)
    return EngineRoom(cluster, dial, client, steady, store, resolver, settings)


def _outliving(dispatcher: weakref.ref[Dispatcher]) -> Callable[[Callable[[], Any]], Any]:
    """`Dispatcher.with_servers` for the store, which must not keep the strategy alive."""

    def outlive(call: Callable[[], Any]) -> Any:
        there = dispatcher()
        return call() if there is None else there.with_servers(call)

    return outlive


def sizes(num_ps: int | None, num_workers: int | None) -> tuple[int, int]:
    """How many servers and workers a local cluster has: by default for the cores there are."""
    cores = os.cpu_count() or 1
    for name, count in [("num_ps", num_ps), ("num_workers", num_workers)]:
        if count is not None and count < 1:
            raise UsageError(
                f"A cluster has at least one worker and one parameter server. Received: {name}="
                f"{count}. Somebody has to hold the variables, and somebody to train them. Pass a "
                "number from 1."
            )
    return num_ps or max(1, cores // 8), num_workers or max(2, cores // 2)
