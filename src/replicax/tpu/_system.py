"""Joining the hosts of a TPU and reading its topology; JAX itself starts and stops the chips."""

from __future__ import annotations

import jax

from replicax._mesh.tpu import devices_of
from replicax.cluster_resolver import ClusterResolver, TPUClusterResolver
from replicax.tpu._topology import Topology


def initialize_tpu_system(cluster_resolver: ClusterResolver | None = None) -> Topology:
    """Join the other hosts of the TPU, start its chips, and read their topology.

    **Differs from TF:** the call is optional, and a second call loses nothing, because JAX starts
    the chips once.

    Args:
        cluster_resolver: The resolver of the hosts. Defaults to `TPUClusterResolver()`.

    Returns:
        The topology of the devices. After a fallback, a topology that a TPU would have.

    Raises:
        ClusterSpecError: If there is no TPU and no fallback.
        UnknownDevice: If JAX has no device of the TPU.

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
    """Clear JAX's caches of compiled programs.

    **Differs from TF:** the chips are released when the program ends, not before.

    Args:
        cluster_resolver: A resolver, whose topology is cleared as well.

    Example:
        >>> import replicax as rx
        >>> rx.tpu.experimental.shutdown_tpu_system()
    """
    jax.clear_caches()
    if isinstance(cluster_resolver, TPUClusterResolver):
        cluster_resolver.set_tpu_topology(None)
