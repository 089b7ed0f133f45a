"""Synchronous training on the chips of a TPU: one host's, a pod slice's, or several slices'."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from replicax._core.context import current_frame
from replicax._core.cross_device_ops import CrossDeviceOps
from replicax._core.errors import UsageError, checks_types
from replicax._core.topology import MODEL, Topology
from replicax._keras import _compat
from replicax._mesh.engine import Engine
from replicax._mesh.store import DeviceStore, replicated
from replicax.cluster_resolver import TPUClusterResolver
from replicax.strategies._base import Strategy, check_resolver
from replicax.tpu._topology import DeviceAssignment, assigned_devices, devices_of

if TYPE_CHECKING:
    from replicax.cluster_resolver import ClusterResolver


@checks_types
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
        check_resolver("tpu_cluster_resolver", tpu_cluster_resolver)
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
        devices = self._engine.topology.model_parallel
        if not 0 <= logical_device_id < devices:
            allowed = f"from 0 to {devices - 1}"
            fix = (
                "The computation_shape of a device assignment sets how many devices a replica has."
            )
            raise UsageError.of("logical_device_id", allowed, logical_device_id, fix)
        return self.experimental_replicate_to_logical_devices(tensor)

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
        topology = self._engine.topology
        if topology.model_parallel == 1:
            return tensor
        return _constrained(tensor, _free(tensor.ndim), topology)


def split_over_model(tensor: Any, dims: Sequence[int], topology: Topology) -> Any:
    """Divide axis i of a tensor into `dims[i]` parts, one combination of parts per device.

    In `run` a tensor belongs to a replica; in `fit` its first axis is divided over replicas, too.
    """
    parts, devices = list(dims), topology.model_parallel
    if len(parts) != tensor.ndim or any(part < 1 for part in parts) or math.prod(parts) != devices:
        raise UsageError(
            f"Cannot split a tensor of shape {tuple(tensor.shape)} into {parts} parts on {devices} "
            "logical device(s) per replica. Pass one number for each axis, 1 for one that stays "
            f"whole; their product must be {devices}. The computation_shape of a device assignment "
            "sets how many devices a replica has."
        )
    if devices == 1 or _compat.in_symbolic_scope():
        return tensor
    uneven = [axis for axis, part in enumerate(parts) if tensor.shape[axis] % part]
    if uneven:
        raise UsageError(
            f"Axis {uneven[0]} of a tensor of shape {tuple(tensor.shape)} is not divisible into "
            f"{parts[uneven[0]]} parts. Pad the axis, choose another number of parts, or leave the "
            "batch axis whole: the replicas divide it already."
        )
    # The mesh has one axis for all logical devices. So the parts are moved to one axis, which is
    # divided, and back. XLA removes these steps, and moves only the data that the division needs.
    rank = tensor.ndim
    inner = [size // part for size, part in zip(tensor.shape, parts, strict=True)]
    paired = [size for pair in zip(parts, inner, strict=True) for size in pair]
    outer_first = [*range(0, 2 * rank, 2), *range(1, 2 * rank, 2)]
    stacked = tensor.reshape(paired).transpose(outer_first).reshape(devices, *inner)
    placed = _constrained(stacked, [MODEL, *_free(rank)], topology)
    back = [axis for pair in zip(range(rank), range(rank, 2 * rank), strict=True) for axis in pair]
    return placed.reshape(*parts, *inner).transpose(back).reshape(tensor.shape)


def _free(rank: int) -> list[Any]:
    """Axes that are whole on the devices of a replica, whatever the replicas divide."""
    first = PartitionSpec.UNCONSTRAINED if _group() is None else None
    return [first, *[None] * (rank - 1)] if rank else []


def _constrained(tensor: Any, axes: Sequence[Any], topology: Topology) -> Any:
    group = _group()
    mesh = topology.mesh if group is None else group.mesh
    if mesh is None:  # an uneven batch: each device computes the rows of its replica
        return tensor
    return jax.lax.with_sharding_constraint(tensor, NamedSharding(mesh, PartitionSpec(*axes)))


def _group() -> Any:
    """The sync group of this replica, in `run`; else None."""
    frame = current_frame()
    return frame.replica.group if frame is not None and frame.replica is not None else None
