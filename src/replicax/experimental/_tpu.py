"""`TPUStrategy` with the arguments of TensorFlow's experimental one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicax import strategies

if TYPE_CHECKING:
    from replicax.cluster_resolver import ClusterResolver
    from replicax.tpu.experimental import DeviceAssignment


class TPUStrategy(strategies.TPUStrategy):
    """A `TPUStrategy` with an older spelling of its arguments.

    Args:
        tpu_cluster_resolver: The resolver of the TPU.
        device_assignment: The assignment of chips to replicas.

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
