"""Synchronous training on several devices of one machine."""

from __future__ import annotations

from typing import final

from replicax._core.compression import Compression, compression_of
from replicax._core.cross_device_ops import CrossDeviceOps, cross_device_ops_of
from replicax._core.errors import UsageError, checks_types
from replicax._core.topology import Devices, Topology
from replicax._mesh.engine import Engine
from replicax._mesh.store import DeviceStore, replicated, zero
from replicax.strategies._base import Strategy


@final
@checks_types
class MirroredStrategy(Strategy):
    """Synchronous training on several devices of one machine.

    Every variable created in `scope()` is kept equal on all devices. `fit` splits each batch
    over the devices and gives one device's result, for any batch size. `run` executes a
    function once per device; optimizers sum the gradients over devices before they apply them.

    **Differs from TF:** uneven batches train to one device's weights; replicas that would
    write different values to a variable without aggregation raise an error; optimizers and
    variables may be divided over the devices.

    Args:
        devices: Devices to replicate on: names such as `["GPU:0", "GPU:1"]`, `"gpu"` for all
            GPUs, or 2 for the first two devices. Defaults to every local accelerator, or to every
            (virtual) CPU device if there is none.
        cross_device_ops: How values are combined across devices: an object, or "nccl",
            "hierarchical_copy" or "reduction_to_one_device". Defaults to one all-reduce chosen
            by XLA.
        shard_optimizer: Whether what optimizers keep, momentum and its like, is divided over
            the devices instead of copied (ZeRO-1). The result is the same.
        shard_parameters: Whether all large variables are divided (ZeRO-3); a step gathers those
            of the model. Also divides what optimizers keep.
        compression: How the gradients that an optimizer gets are made smaller on their way between
            devices: "bf16", "int8", or an object of `rx.experimental.compression`. None sends what
            there is. See docs/multi_worker.md.

    Raises:
        UnknownDevice: If a device does not exist or is named twice.
        UsageError: If there is no such compression, or `cross_device_ops` are given, too.

    Example:
        >>> import replicax as rx
        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> strategy.num_replicas_in_sync
        2
    """

    def __init__(
        self,
        devices: Devices | None = None,
        cross_device_ops: CrossDeviceOps | str | None = None,
        *,
        shard_optimizer: bool = False,
        shard_parameters: bool = False,
        compression: Compression | str | None = None,
    ) -> None:
        if compression is not None and cross_device_ops is not None:
            raise UsageError(
                f"`compression={compression!r}` and `cross_device_ops={cross_device_ops!r}` "
                "exclude each other. Pass only one of them."
            )
        topology = Topology.local(devices)
        divides = shard_optimizer or shard_parameters
        placement = zero(topology, parameters=shard_parameters) if divides else replicated(topology)
        store = DeviceStore(placement, topology)
        reducer, small = cross_device_ops_of(cross_device_ops), compression_of(compression)
        super().__init__(Engine(topology, store, reducer, compression=small))
