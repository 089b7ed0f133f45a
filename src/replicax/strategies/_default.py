"""The strategy outside every scope: one replica, variables where Keras puts them."""

from __future__ import annotations

from typing import final

from replicax._core.cross_device_ops import CrossDeviceOps
from replicax._core.topology import Topology
from replicax._mesh.engine import Engine
from replicax._mesh.store import DeviceStore, anywhere
from replicax.strategies._base import Strategy


@final
class DefaultStrategy(Strategy):
    """One replica on JAX's default device; what `get_strategy()` gives outside every scope.

    It makes code written for strategies run without one. `has_strategy()` stays False in its
    scope.

    Example:
        >>> import replicax as rx
        >>> strategy = rx.get_strategy()
        >>> strategy.num_replicas_in_sync, rx.has_strategy()
        (1, False)
    """

    def __init__(self) -> None:
        topology = Topology.single()
        super().__init__(Engine(topology, DeviceStore(anywhere(), topology), CrossDeviceOps()))
