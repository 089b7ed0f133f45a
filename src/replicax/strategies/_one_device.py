"""Everything on one device: to name the device, and to try a distributed program on it."""

from __future__ import annotations

from typing import final

import jax

from replicax._core.cross_device_ops import CrossDeviceOps
from replicax._core.errors import checks_types
from replicax._core.topology import Topology
from replicax._mesh.engine import Engine
from replicax._mesh.store import DeviceStore, on
from replicax.strategies._base import Strategy


@final
@checks_types
class OneDeviceStrategy(Strategy):
    """Variables and computation on one device.

    **Differs from TF:** a device that does not exist is an error, not silently the CPU.

    Args:
        device: The device, such as `"GPU:0"` or `"/cpu:0"`.

    Raises:
        UnknownDevice: If this machine has no such device.

    Example:
        >>> import keras
        >>> import replicax as rx
        >>> strategy = rx.OneDeviceStrategy("CPU:1")
        >>> with strategy.scope():
        ...     v = keras.Variable(1.0)
        >>> [d.id for d in v.value.devices()]
        [1]
    """

    def __init__(self, device: str | jax.Device) -> None:
        topology = Topology.single(device)
        store = DeviceStore(on(topology.devices[0]), topology)
        super().__init__(Engine(topology, store, CrossDeviceOps()))
