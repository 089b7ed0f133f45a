"""Models that are divided over devices, and copies of them that train in step."""

from __future__ import annotations

from typing import Any, final

from replicax._core.cross_device_ops import CrossDeviceOps
from replicax._core.errors import checks_types
from replicax._core.topology import Devices, Topology
from replicax._mesh.engine import Engine
from replicax._mesh.store import DeviceStore, by_layout, zero
from replicax.strategies._base import Strategy


@final
@checks_types
class ModelParallelStrategy(Strategy):
    """Synchronous training of a model that is too large for one device, divided over several.

    `model_parallel` devices hold one replica together: each has a part of every large
    variable, and XLA divides the computation accordingly. So 8 devices with `model_parallel=4`
    are 2 replicas, among which batches are split as with `MirroredStrategy`. Results are those
    of one device.

    **Differs from TF:** there it is DTensor, another library with other tensors. Here it is a
    strategy like the others: `fit`, `run`, data sets and checkpoints work the same.

    Args:
        layout_map: Which axis of a variable is divided: a `keras.distribution.LayoutMap`, or a
            dict such as `{".*dense.*/kernel": (None, "model")}` from patterns, which match whole
            paths, to one name per axis. What no pattern matches is whole on each device; what an
            optimizer keeps follows its variable. `"auto"` divides each variable of two or more
            axes, and at least 1024 elements, along its largest axis that `model_parallel` divides.
        model_parallel: How many devices hold one replica. They are neighbours in `devices`.
        devices: All devices. Defaults to every local accelerator, or to every (virtual) CPU
            device if there is none.
        shard_optimizer: Whether what optimizers keep is divided over the replicas, too.

    Raises:
        UnknownDevice: If a device does not exist or is named twice.
        UsageError: If `model_parallel` does not divide the devices; when a variable is made,
            if its layout does not fit it.

    Example:
        >>> import keras
        >>> import replicax as rx
        >>> strategy = rx.ModelParallelStrategy(
        ...     {".*kernel": (None, "model")}, model_parallel=2, devices=["CPU:0", "CPU:1"])
        >>> with strategy.scope():
        ...     model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(6)])
        >>> [shard.data.shape for shard in model.weights[0].value.addressable_shards]
        [(4, 3), (4, 3)]
    """

    def __init__(
        self,
        layout_map: Any = "auto",
        *,
        model_parallel: int,
        devices: Devices | None = None,
        shard_optimizer: bool = False,
    ) -> None:
        topology = Topology.local(devices, model_parallel=model_parallel)
        placement = by_layout(topology, layout_map)
        if shard_optimizer:
            placement = zero(topology, parameters=False, base=placement)
        store = DeviceStore(placement, topology)
        super().__init__(Engine(topology, store, CrossDeviceOps()))
