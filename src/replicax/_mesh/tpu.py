"""For `TPUStrategy` alone: a TPU's devices, and tensors divided over those of a replica.

A program for a TPU computes on the devices of all its hosts, or on its fallback. A tensor is
divided over the devices of one replica, the mesh axis `model`, by functions that return the same
values and only place them. In `run` the tensor belongs to a replica; in `fit` it is the
whole batch, whose first axis is divided over replicas too.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from replicax._core.context import current_frame
from replicax._core.errors import UnknownDevice, UsageError
from replicax._core.options import CommunicationOptions
from replicax._core.topology import MODEL, Topology
from replicax._keras import _compat
from replicax._mesh.processes import start
from replicax.cluster_resolver import ClusterResolver, TPUClusterResolver

_LOG = logging.getLogger("replicax")


def devices_of(resolver: ClusterResolver) -> list[jax.Device]:
    """Join the other hosts, if there are some, and list the devices of all of them, in order.

    A resolver for a TPU may name what to fall back to.
    """
    start(resolver, CommunicationOptions())
    looks = isinstance(resolver, TPUClusterResolver)
    fallback = resolver.fallback if looks else ()
    noted = [resolver.looked_for] if looks and not resolver.found else []
    for kind in (*(() if noted else ("tpu",)), *fallback):
        try:
            found = jax.devices(kind)
        except RuntimeError as error:
            noted.append(f'    jax.devices("{kind}"): {error}')
            continue
        if kind != "tpu":
            _tell(resolver, kind, len(found), "\n".join(noted))
        return sorted(found, key=lambda device: (device.process_index, device.id))
    looked = "\n".join(noted)
    raise UnknownDevice(
        f"JAX has no device of the TPU or of its fallback. Looked for:\n{looked}\n"
        "Install the driver with `pip install 'replicax[tpu]'`, and see that JAX_PLATFORMS allows "
        "it and no other process has the chips; or fall back: "
        'TPUClusterResolver(fallback=("gpu", "cpu")).'
    )


@functools.lru_cache(maxsize=16)
def _tell(resolver: ClusterResolver, kind: str, count: int, looked: str) -> None:
    """Say once what the program runs on instead."""
    devices = f"{count} {kind.upper()} device" + ("s" if count > 1 else "")
    _LOG.warning("No TPU was found: this runs on %s instead. Looked for:\n%s", devices, looked)


def split_over_model(tensor: Any, dims: Sequence[int], topology: Topology) -> Any:
    """Divide axis i of a tensor into `dims[i]` parts, one combination of parts per device."""
    parts, devices = list(dims), topology.model_parallel
    if len(parts) != tensor.ndim or any(part < 1 for part in parts) or math.prod(parts) != devices:
        raise UsageError(
            f"Cannot split a tensor of shape {tuple(tensor.shape)} into {parts} parts on {devices} "
            "logical device(s) per replica. Write one number for each axis, 1 for axes that stay "
            f"whole, whose product is {devices}; computation_shape of a device assignment says how "
            "many devices a replica has."
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
    # The mesh has one axis for all logical devices. So the parts are brought to one axis, which is
    # divided, and the axes are put back: XLA removes these steps, and moves only what the
    # division needs.
    rank = tensor.ndim
    inner = [size // part for size, part in zip(tensor.shape, parts, strict=True)]
    paired = [size for pair in zip(parts, inner, strict=True) for size in pair]
    outer_first = [*range(0, 2 * rank, 2), *range(1, 2 * rank, 2)]
    stacked = tensor.reshape(paired).transpose(outer_first).reshape(devices, *inner)
    placed = _constrained(stacked, [MODEL, *_free(rank)], topology)
    back = [axis for pair in zip(range(rank), range(rank, 2 * rank), strict=True) for axis in pair]
    return placed.reshape(*parts, *inner).transpose(back).reshape(tensor.shape)


def whole_over_model(tensor: Any, topology: Topology) -> Any:
    """Let every device of a replica have the whole of the replica's tensor."""
    if topology.model_parallel == 1:
        return tensor
    return _constrained(tensor, _free(tensor.ndim), topology)


def assigned_over_model(tensor: Any, logical_device_id: int, topology: Topology) -> Any:
    """See that there is such a device; one program for all devices computes it on each of them."""
    if not 0 <= logical_device_id < topology.model_parallel:
        raise UsageError.of(
            "logical_device_id",
            f"from 0 to {topology.model_parallel - 1}",
            logical_device_id,
            "computation_shape of a device assignment says how many devices a replica has.",
        )
    return whole_over_model(tensor, topology)


def _free(rank: int) -> list[Any]:
    """Axes that are whole on the devices of a replica, whatever the replicas divide."""
    first = PartitionSpec.UNCONSTRAINED if _group() is None else None
    return [first, *[None] * (rank - 1)] if rank else []


def _constrained(tensor: Any, axes: Sequence[Any], topology: Topology) -> Any:
    group = _group()
    mesh = topology.mesh if group is None else group.mesh
    if mesh is None:  # rows that the replicas do not divide: each device computes its replica's
        return tensor
    return jax.lax.with_sharding_constraint(tensor, NamedSharding(mesh, PartitionSpec(*axes)))


def _group() -> Any:
    """The sync group of this replica, in `run`; else None."""
    frame = current_frame()
    return frame.replica.group if frame is not None and frame.replica is not None else None
