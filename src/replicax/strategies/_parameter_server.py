"""Asynchronous training: variables on servers, computation on workers."""

from __future__ import annotations

import copyreg
import functools
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, final

from replicax._core.cross_device_ops import CrossDeviceOps
from replicax._core.errors import checks_types
from replicax._core.topology import Topology
from replicax._keras.distribution import Closures, adopt
from replicax._mesh.engine import Engine
from replicax._ps.queue.coordination import Coordination, check_in_flight
from replicax._ps.queue.lanes import check_bound
from replicax._ps.start import start
from replicax._ps.steps import steps_maker
from replicax.strategies._base import Strategy, check_resolver
from replicax.strategies._current import get_strategy

if TYPE_CHECKING:
    import os


@final
@checks_types
class ParameterServerStrategy(Strategy):
    """Variables live on parameter servers; workers train them, each at its own pace.

    Work is given to the workers as closures, by a `rx.coordinator.ClusterCoordinator`, or by
    `fit`. A closure fetches the values that it needs, computes, and sends gradients; the servers
    apply them as they come. Nobody waits for the slowest.

    **Differs from TF:** without arguments a local cluster is started, and the constructor
    does not wait for its processes: if they cannot start, the first use of a server fails; `fit`,
    `evaluate` and `predict` work; each update is applied once, also if a worker dies; a server that
    dies comes back; staleness is measured, and can be bounded.

    Args:
        cluster_resolver: Who is in the cluster, with jobs `worker` and `ps`. Defaults to
            `TF_CONFIG`; without it, a local cluster is started.
        variable_partitioner: Divides variables by rows: see `rx.experimental.partitioners`.
        num_workers: How many workers a cluster that is started here has.
        num_ps: How many servers it has.
        engine: "processes" on this machine, which is the default; or "threads" for servers and
            workers in this process, to debug.
        address: The address of a Ray cluster that runs already, or "auto": workers and servers are
            its actors.
        resources: What each of them asks Ray for, such as `{"worker": {"CPU": 2, "GPU": 1},
            "ps": {"CPU": 1}}`. Defaults to one core.
        max_staleness: How many updates a gradient may be late; 0 is one closure at a time, None
            any number.
        closures_in_flight: How many closures each worker has under way. With 1, as in TensorFlow,
            a closure reads variables after the worker's previous one has updated them. With 2, one
            computes while the other exchanges values: up to twice as many steps a second, and
            gradients that are two to three times as late.
        staleness_scaling: "inverse" divides a gradient by 1 + its lateness; or a function of it.
        snapshot_dir: Where servers write snapshots; defaults to a folder that ends with the
            cluster.
        snapshot_seconds: How often they do, if something has changed. A server that dies is
            restored from its last snapshot, and `ClusterCoordinator.recoveries` says how many
            updates were lost. None for no snapshots: a server that dies is an error then.
        replicas: 1 to let each server have a replica on another one, which applies every update
            before it is confirmed: a server that dies loses nothing. It costs as much again.

    Raises:
        UsageError: If an argument is none of these.

    Example:
        >>> import keras
        >>> import replicax as rx
        >>> strategy = rx.ParameterServerStrategy(engine="threads", num_workers=2, num_ps=1)
        >>> with strategy.scope():
        ...     v = keras.Variable([1.0, 2.0])
        >>> v.assign_add([1.0, 1.0]).tolist()
        [2.0, 3.0]
        >>> [float(x) for x in v.value]
        [2.0, 3.0]
        >>> strategy.close()
    """

    def __init__(
        self,
        cluster_resolver: Any = None,
        variable_partitioner: Callable[..., Any] | None = None,
        *,
        num_workers: int | None = None,
        num_ps: int | None = None,
        engine: str | None = None,
        address: str | None = None,
        resources: Mapping[str, Mapping[str, float]] | None = None,
        max_staleness: int | None = None,
        closures_in_flight: int = 1,
        staleness_scaling: Any = None,
        snapshot_dir: str | os.PathLike[str] | None = None,
        snapshot_seconds: float | None = 30.0,
        replicas: int = 0,
    ) -> None:
        check_resolver("cluster_resolver", cluster_resolver)
        check_in_flight(closures_in_flight)
        check_bound(max_staleness)
        topology = Topology.single()
        started = start(
            cluster_resolver,
            variable_partitioner,
            num_workers=num_workers,
            num_ps=num_ps,
            engine=engine,
            address=address,
            resources=resources,
            settings={"staleness_scaling": staleness_scaling},
            snapshot_dir=snapshot_dir,
            snapshot_seconds=snapshot_seconds,
            replicas=replicas,
        )
        store = started.store
        self.coordination = coordination = Coordination(
            started,
            functools.partial(adopt, store),
            self.scope,
            max_staleness=max_staleness,
            closures_in_flight=closures_in_flight,
        )
        closures = Closures(
            steps_maker(coordination, store),
            coordination.members,
            coordination.created_dataset,
            functools.cache(_warn_computes_here),
            coordination.described,
        )
        whole = Engine(topology, store, CrossDeviceOps(), closures=closures)
        super().__init__(whole, cluster_resolver=started.resolver)
        self.close = coordination.close


def _warn_computes_here() -> None:
    logging.getLogger("replicax").warning(
        "`strategy.run` outside a scheduled function computes in the coordinator's process, and no "
        "worker helps. Call it inside a function that `ClusterCoordinator.schedule` is given."
    )


# On a worker, inside a function that makes a data set, the strategy is that of one replica.
_as_default: Any = lambda strategy: (get_strategy, ())  # noqa: E731
copyreg.pickle(ParameterServerStrategy, _as_default)
