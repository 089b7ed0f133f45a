"""Joining the hosts of a TPU and looking at its devices; JAX itself starts and stops the chips."""

from __future__ import annotations

import jax

from replicax._mesh.tpu import devices_of
from replicax.cluster_resolver import ClusterResolver, TPUClusterResolver
from replicax.tpu._topology import Topology


def initialize_tpu_system(cluster_resolver: ClusterResolver | None = None) -> Topology:
    """Join the other hosts of the TPU, start its chips, and see where they are.

    **Differs from TF:** it may be left out, and nothing is lost by calling it again: JAX starts
    the chips once.

    Args:
        cluster_resolver: What describes the hosts. Defaults to `TPUClusterResolver()`.

    Returns:
        Where the devices are. After a fallback, where they would be on a TPU.

    Raises:
        ClusterSpecError: If there is no TPU and no fallback.
        UnknownDevice: If JAX has no device of it.

    Example:
        >>> import replicax as rx
        >>> resolver = rx.cluster_resolver.TPUClusterResolver(tpu="auto", fallback=("cpu",))
        >>> topology = rx.tpu.experimental.initialize_tpu_system(resolver)
        >>> topology.num_tasks
        1
    """
    resolver = cluster_resolver or TPUClusterResolver()
    topology = Topology.of(devices_of(resolver))
    if isinstance(resolver, TPUClusterResolver):
        resolver.set_tpu_topology(topology)
    return topology


def shutdown_tpu_system(cluster_resolver: ClusterResolver | None = None) -> None:
    """Forget what was compiled.

    **Differs from TF:** the chips are given back when the program ends, not before.

    Args:
        cluster_resolver: Whose topology is forgotten, too.

    Example:
        >>> import replicax as rx
        >>> rx.tpu.experimental.shutdown_tpu_system()
    """
    jax.clear_caches()
    if isinstance(cluster_resolver, TPUClusterResolver):
        cluster_resolver.set_tpu_topology(None)
