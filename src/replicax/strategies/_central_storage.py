"""Variables on one device, computation on all."""

from __future__ import annotations

from typing import final

import jax

from replicax._core.cross_device_ops import CrossDeviceOps
from replicax._core.errors import checks_types
from replicax._core.topology import Devices, Topology, central_device, parse_device
from replicax._mesh.engine import Engine
from replicax._mesh.store import DeviceStore, on
from replicax.strategies._base import Strategy


@final
@checks_types
class CentralStorageStrategy(Strategy):
    """One copy of every variable, on one device; every device computes with it.

    For models whose variables should not stay on accelerators between steps.

    **Differs from TF:** the compute devices update the variables, each alike, and hold the
    optimizer's during a step; also available outside `experimental`; without arguments all local
    devices compute, not one CPU; `fit` reports the true loss.

    Args:
        compute_devices: Devices that compute. Defaults to every local accelerator, or to
            every (virtual) CPU device if there is none.
        parameter_device: Where variables live. Defaults to the only compute device, else to
            the first CPU.

    Raises:
        UnknownDevice: If a device does not exist or is named twice.

    Example:
        >>> import keras
        >>> import replicax as rx
        >>> strategy = rx.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:2")
        >>> with strategy.scope():
        ...     v = keras.Variable(1.0)
        >>> strategy.num_replicas_in_sync, [d.id for d in v.value.devices()]
        (2, [2])
    """

    def __init__(
        self,
        compute_devices: Devices | None = None,
        parameter_device: str | jax.Device | None = None,
    ) -> None:
        topology = Topology.local(compute_devices)
        named = parameter_device is not None
        home = parse_device(parameter_device) if named else central_device(topology)
        super().__init__(Engine(topology, DeviceStore(on(home), topology), CrossDeviceOps()))
