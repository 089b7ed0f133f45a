"""Synchronous training on the devices of several processes, on one machine or many."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicax._core.compression import compression_of
from replicax._core.cross_device_ops import CollectiveAllReduce
from replicax._core.errors import checks_types
from replicax._core.options import CommunicationOptions
from replicax._core.topology import Topology
from replicax._fit.replica_steps import local_steps
from replicax._mesh.engine import Engine
from replicax._mesh.processes import start
from replicax._mesh.store import DeviceStore, replicated
from replicax.cluster_resolver import TFConfigClusterResolver, detect
from replicax.strategies._base import Strategy, check_resolver

if TYPE_CHECKING:
    from replicax.cluster_resolver import ClusterResolver


@checks_types
class MultiWorkerMirroredStrategy(Strategy):
    """Synchronous training on the devices of several processes, on one machine or many.

    Every worker runs the same program and drives its own devices; together they are the
    replicas. Variables are kept equal on all of them. Otherwise everything is as with
    `MirroredStrategy`: `fit` gives one device's result for any batch size, and the batch size is
    that of all workers together. Without a cluster there is one worker, with all its devices.

    The workers compare their programs before the first step. If one of them dies or stands
    still, all others end with a message that names it.

    **Differs from TF:** `fit` works; uneven batches train to one device's weights; a cluster of
    Slurm, MPI, Kubernetes or SageMaker is found without a resolver.

    Args:
        cluster_resolver: Who is in the cluster. Defaults to what the environment describes:
            `TF_CONFIG`, a Slurm step, an MPI launcher, a SageMaker job, a Kubernetes Job.
        communication_options: Size of packs, time-out and kind of communication.
        sync_every: In `fit`, how many steps each replica takes by itself before all take the mean
            of their weights: local SGD, for slow networks. 1 combines every gradient. Other than
            with 1, the result is not that of one device. See docs/multi_worker.md.

    Raises:
        UsageError: If an argument is of another kind, `sync_every` is not positive, or gradients
            that stay where they are should be compressed.
        BackendAlreadyInitialized: If JAX was used before; under `replicax run` it is not.
        ClusterSpecError: If the description of the cluster cannot be used.
        ClusterError: If not all workers come in time.
        WorkersDiffer: If versions, devices or options are not the same on all workers.

    Example:
        >>> import replicax as rx
        >>> strategy = rx.MultiWorkerMirroredStrategy()  # no cluster: one worker
        >>> strategy.num_replicas_in_sync == len(strategy.extended.worker_devices)
        True
    """

    def __init__(
        self,
        cluster_resolver: ClusterResolver | None = None,
        communication_options: CommunicationOptions | None = None,
        *,
        sync_every: int = 1,
    ) -> None:
        check_resolver("cluster_resolver", cluster_resolver)
        options = communication_options or CommunicationOptions()
        local = local_steps(sync_every, options)
        resolver = cluster_resolver or detect()
        topology = Topology.cluster() if start(resolver, options) else Topology.local()
        reducer = CollectiveAllReduce(options.bytes_per_pack)
        store = DeviceStore(replicated(topology), topology)
        compression = compression_of(options.compression)
        engine = Engine(topology, store, reducer, compression=compression, local_steps=local)
        super().__init__(engine, cluster_resolver=resolver or TFConfigClusterResolver())
