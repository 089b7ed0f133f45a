"""Variables on devices: `DeviceStore` and the placements that tell the strategies apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import jax
from jax.sharding import Sharding

from replicax._core.placement import place_all
from replicax._core.store import VariableSpec
from replicax._core.topology import Topology, device_name

Placement = Callable[[VariableSpec], Sharding | None]


def on(device: jax.Device) -> Placement:
    """Every variable whole, on one device."""
    # A mesh of one device, not a `SingleDeviceSharding`: Keras asks for `layout.mesh`.
    home = Topology.single(device).replicated
    return lambda spec: home


def replicated(topology: Topology) -> Placement:
    """Every variable whole, on every replica's device."""
    return lambda spec: topology.replicated


def anywhere() -> Placement:
    """Every variable where Keras puts it."""
    return lambda spec: None


@final
class DeviceStore:
    """Variables on the devices of this process.

    Args:
        placement: Where a variable lives.
        topology: The replicas that read and write the variables.
    """

    def __init__(self, placement: Placement, topology: Topology) -> None:
        self._placement = placement
        self._topology = topology
        home = placement(VariableSpec("", (), "float32"))
        self._home = home
        self.is_resident = home is None or home.device_set == set(topology.devices)

    def layout(self, spec: VariableSpec) -> Sharding | None:
        return self._placement(spec)

    def claim(self, variable: Any) -> None:
        """Leave it where Keras puts it."""

    @property
    def devices(self) -> tuple[jax.Device, ...]:
        """Where variables live."""
        if self._home is None or self.is_resident:
            return self._topology.devices
        return tuple(self._home.device_set)

    @property
    def device_names(self) -> tuple[str, ...]:
        """The names of these devices."""
        return tuple(map(device_name, self.devices))

    def lend(self, values: Any) -> Any:
        return values if self.is_resident else place_all(values, self._topology.replicated)

    def keep(self, values: Any) -> Any:
        if self.is_resident or self._home is None:
            return values
        return place_all(values, self._home)
