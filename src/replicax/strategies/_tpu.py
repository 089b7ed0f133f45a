"""Synchronous training on the chips of a TPU: one host's, a pod slice's, or several slices'."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax

from replicax._core.cross_device_ops import CrossDeviceOps
from replicax._core.topology import Topology
from replicax._mesh.engine import Engine
from replicax._mesh.store import DeviceStore, replicated
from replicax._mesh.tpu import (
    assigned_over_model,
    devices_of,
    split_over_model,
    whole_over_model,
)
from replicax.cluster_resolver import TPUClusterResolver
from replicax.strategies._base import Strategy
from replicax.tpu._topology import DeviceAssignment, assigned_devices

if TYPE_CHECKING:
    from replicax.cluster_resolver import ClusterResolver


class TPUStrategy(Strategy):
    """Synchronous training on the chips of a TPU: one host's, a pod slice's, or several slices'.

    Every host runs the same program and drives its own chips; together they are the replicas.
    Otherwise everything is as with `MirroredStrategy` and `MultiWorkerMirroredStrategy`: `fit`
    gives one device's result for any batch size, `run` is compiled for all chips. With a device
    assignment several chips form a replica, and tensors can be divided over them.

    **Differs from TF:** the program runs on the TPU's hosts. Batches of any size are allowed; each
    size gets a program of its own. `initialize_tpu_system` need not be called. With a resolver
    that has a `fallback`, the program also runs on GPUs or CPUs.

    Args:
        tpu_cluster_resolver: What describes the TPU. Defaults to `TPUClusterResolver()`: the TPU
            that this machine is a part of.
        experimental_device_assignment: Which chips form which replica. Defaults to one chip each,
            all of them.
        experimental_spmd_xla_partitioning: Not needed: XLA always partitions the program.

    Raises:
        ClusterSpecError: If there is no TPU, and nothing to fall back to.
        UnknownDevice: If JAX has no device of it, or the assignment is of another TPU.
        BackendAlreadyInitialized: If there are several hosts, and JAX was used before.
        WorkersDiffer: If versions or devices are not the same on all hosts.

    Example:
        >>> import replicax as rx
        >>> resolver = rx.cluster_resolver.TPUClusterResolver(tpu="auto", fallback=("gpu", "cpu"))
        >>> strategy = rx.TPUStrategy(resolver)
        >>> strategy.num_replicas_in_sync == len(strategy.extended.worker_devices)
        True
    """

    def __init__(
        self,
        tpu_cluster_resolver: ClusterResolver | None = None,
        experimental_device_assignment: DeviceAssignment | None = None,
        experimental_spmd_xla_partitioning: bool = False,
    ) -> None:
        del experimental_spmd_xla_partitioning
        resolver = tpu_cluster_resolver or TPUClusterResolver()
        devices, together = devices_of(resolver), 1
        if experimental_device_assignment is not None:
            together = experimental_device_assignment.num_cores_per_replica
            devices = assigned_devices(experimental_device_assignment, devices)
        topology = replace(
            Topology.of(devices, together),
            process_index=jax.process_index(),
            num_processes=jax.process_count(),
        )
        store = DeviceStore(replicated(topology), topology)
        super().__init__(Engine(topology, store, CrossDeviceOps()), cluster_resolver=resolver)

    def experimental_assign_to_logical_device(self, tensor: Any, logical_device_id: int) -> Any:
        """Say that a tensor is for one of the devices of each replica; its numbers stay.

        **Differs from TF:** all devices of a replica run one program, so each of them computes
        the tensor. To divide work and memory, split it.

        Args:
            tensor: An array, in `run` or in a layer.
            logical_device_id: The number of the device in its replica.

        Returns:
            The tensor.

        Raises:
            UsageError: If a replica has no such device.
        """
        return assigned_over_model(tensor, logical_device_id, self._engine.topology)

    def experimental_split_to_logical_devices(
        self, tensor: Any, partition_dimensions: Sequence[int]
    ) -> Any:
        """Divide a tensor over the devices of each replica; its numbers stay.

        What is computed from it is divided likewise, as far as XLA sees fit: a convolution
        exchanges the rows at the borders.

        Args:
            tensor: An array, in `run` or in the `call` of a layer.
            partition_dimensions: Into how many parts each axis goes; together as many as a
                replica has devices. In `fit` the first axis is the whole batch's.

        Returns:
            The tensor.

        Raises:
            UsageError: If the numbers do not fit the tensor or the devices.

        Example:
            >>> import numpy as np
            >>> import replicax as rx
            >>> resolver = rx.cluster_resolver.TPUClusterResolver(fallback="cpu")
            >>> topology = rx.tpu.experimental.initialize_tpu_system(resolver)
            >>> pairs = rx.tpu.experimental.DeviceAssignment.build(topology, [2, 1, 1, 1])
            >>> strategy = rx.TPUStrategy(resolver, pairs)
            >>> def halves(x):
            ...     return strategy.experimental_split_to_logical_devices(x, [1, 2]).sum()
            >>> float(strategy.run(halves, args=(np.ones((3, 4), "float32"),)))
            12.0
        """
        return split_over_model(tensor, partition_dimensions, self._engine.topology)

    def experimental_replicate_to_logical_devices(self, tensor: Any) -> Any:
        """Let each device of a replica have the whole of a tensor; its numbers stay.

        Args:
            tensor: An array, in `run` or in a layer.

        Returns:
            The tensor.
        """
        return whole_over_model(tensor, self._engine.topology)
