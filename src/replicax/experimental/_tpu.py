"""`TPUStrategy` with the arguments that it had while it was experimental."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicax import strategies

if TYPE_CHECKING:
    from replicax.cluster_resolver import ClusterResolver
    from replicax.tpu.experimental import DeviceAssignment


def TPUStrategy(
    tpu_cluster_resolver: ClusterResolver | None = None,
    device_assignment: DeviceAssignment | None = None,
) -> strategies.TPUStrategy:
    """Make a `TPUStrategy`; an older spelling of its arguments.

    **Differs from TF:** it is a function, and what it returns is an `rx.TPUStrategy`.

    Args:
        tpu_cluster_resolver: What describes the TPU.
        device_assignment: Which chips form which replica.

    Returns:
        The strategy.

    Example:
        >>> import replicax as rx
        >>> resolver = rx.cluster_resolver.TPUClusterResolver(fallback="cpu")
        >>> type(rx.experimental.TPUStrategy(resolver)) is rx.TPUStrategy
        True
    """
    return strategies.TPUStrategy(tpu_cluster_resolver, device_assignment)
