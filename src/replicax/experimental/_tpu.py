"""`TPUStrategy` with the arguments that it had while it was experimental."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicax import strategies

if TYPE_CHECKING:
    from replicax.cluster_resolver import ClusterResolver
    from replicax.tpu.experimental import DeviceAssignment


class TPUStrategy(strategies.TPUStrategy):
    """A `TPUStrategy`; an older spelling of its arguments.

    Args:
        tpu_cluster_resolver: What describes the TPU.
        device_assignment: Which chips form which replica.

    Example:
        >>> import replicax as rx
        >>> resolver = rx.cluster_resolver.TPUClusterResolver(fallback="cpu")
        >>> isinstance(rx.experimental.TPUStrategy(resolver), rx.TPUStrategy)
        True
    """

    def __init__(
        self,
        tpu_cluster_resolver: ClusterResolver | None = None,
        device_assignment: DeviceAssignment | None = None,
    ) -> None:
        super().__init__(tpu_cluster_resolver, device_assignment)
