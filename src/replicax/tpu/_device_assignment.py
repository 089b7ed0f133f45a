"""The assignment of a TPU's devices to replicas: `DeviceAssignment`, by TensorFlow's names."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, final

import jax
import numpy as np

from replicax._core.errors import UnknownDevice, UsageError
from replicax.tpu._topology import RANK, Topology


@final
class DeviceAssignment:
    """The devices of each replica; a model that is too large for one device uses several.

    `TPUStrategy(resolver, assignment)` has these replicas, and a mesh axis `model` over the devices
    of a replica. `experimental_split_to_logical_devices` divides a tensor over this axis.

    **Differs from TF:** all devices of a replica belong to one host.

    Args:
        topology: The topology of the devices.
        core_assignment: The coordinates of each device of each replica: an array of shape
            (replicas, devices of a replica, 4).

    Raises:
        UsageError: If a device is not in the topology, or in two replicas.

    Example:
        >>> from replicax.tpu.experimental import DeviceAssignment, Topology
        >>> places = [[[x, y, 0, 0] for y in range(2) for x in range(2)]]
        >>> topology = Topology(mesh_shape=[2, 2, 1, 1], device_coordinates=places)
        >>> pairs = DeviceAssignment.build(topology, [2, 1, 1, 1], num_replicas=2)
        >>> pairs.num_cores_per_replica, pairs.coordinates(1, 0)
        (2, (0, 1, 0, 0))
    """

    def __init__(self, topology: Topology, core_assignment: Any) -> None:
        self._topology = topology
        self._assignment = np.asarray(core_assignment, np.int32)
        shape = self._assignment.shape
        places = [tuple(place) for place in self._assignment.reshape(-1, shape[-1]).tolist()]
        if len(shape) != 3 or shape[2] != RANK or not places or len(set(places)) < len(places):
            raise UsageError(
                "`core_assignment` must be different coordinates of shape (replicas, devices of a "
                f"replica, 4), got shape {shape} with {len(places) - len(set(places))} coordinates "
                "twice."
            )
        for place in places:
            topology.task_ordinal_at_coordinates(place)

    @staticmethod
    def build(
        topology: Topology,
        computation_shape: Sequence[int] | None = None,
        computation_stride: Sequence[int] | None = None,
        num_replicas: int = 1,
    ) -> DeviceAssignment:
        """Fill the mesh with replicas of one shape.

        Replicas follow each other first along the cores of a chip, then along x, y and z; devices
        of a replica follow the order of their coordinates. **Differs from TF:** if fewer replicas
        are requested than fit, they are the first ones, not the ones nearest to a cube.

        Args:
            topology: The topology of the devices.
            computation_shape: The number of devices of a replica along each axis. Defaults
                to one device.
            computation_stride: The distance between them. Defaults to 1: neighbours.
            num_replicas: The number of replicas.

        Raises:
            UsageError: If the shape is not valid, or the replicas do not fit.
        """
        shape = np.array([1] * RANK if computation_shape is None else computation_shape)
        stride = np.array([1] * RANK if computation_stride is None else computation_stride)
        mesh = topology.mesh_shape
        valid = shape.shape == stride.shape == (RANK,) and (shape > 0).all() and (stride > 0).all()
        blocks = mesh // (shape * stride) if valid else np.zeros(RANK, int)
        fitting = math.prod((blocks * stride).tolist()) if valid else 0
        if not 1 <= num_replicas <= fitting:
            raise UsageError(
                f"Only {fitting} replicas of shape {shape.tolist()} with stride {stride.tolist()} "
                f"fit into a mesh of {mesh.tolist()}, got num_replicas={num_replicas}. Use a "
                "smaller shape of four numbers from 1, or fewer replicas."
            )
        counts = blocks * stride
        within = np.array(list(itertools.product(*map(range, shape)))) * stride
        starts = []
        # Backwards, because `product` counts the last axis fastest, and here it is the core, x, …
        for z, y, x, core in itertools.product(*(range(counts[axis]) for axis in (2, 1, 0, 3))):
            at = np.array([x, y, z, core])
            starts.append(at // stride * shape * stride + at % stride)
        return DeviceAssignment(topology, [start + within for start in starts[:num_replicas]])

    @property
    def topology(self) -> Topology:
        """Where the devices are."""
        return self._topology

    @property
    def core_assignment(self) -> np.ndarray:
        """The coordinates: an array of shape (replicas, devices of a replica, 4)."""
        return self._assignment

    @property
    def num_replicas(self) -> int:
        """The number of replicas."""
        return self._assignment.shape[0]

    @property
    def num_cores_per_replica(self) -> int:
        """The number of devices of a replica."""
        return self._assignment.shape[1]

    def coordinates(self, replica: int, logical_core: int) -> tuple[int, ...]:
        """The coordinates of a device of a replica."""
        return tuple(self._assignment[replica, logical_core].tolist())

    def lookup_replicas(self, task_id: int, logical_core: int) -> list[int]:
        """The replicas whose device `logical_core` belongs to host `task_id`.

        Raises:
            UsageError: If there is no such replica.
        """
        task_of = self._topology.task_ordinal_at_coordinates
        found = [
            replica
            for replica in range(self.num_replicas)
            if 0 <= logical_core < self.num_cores_per_replica
            if task_of(self.coordinates(replica, logical_core)) == task_id
        ]
        if not found:
            raise UsageError(
                f"Task {task_id} has no logical device {logical_core}: there are "
                f"{self._topology.num_tasks} hosts and {self.num_cores_per_replica} devices of a "
                "replica. Count both from 0."
            )
        return found

    def tpu_ordinal(self, replica: int = 0, logical_core: int = 0) -> int:
        """The number of a replica's device on its host."""
        place = self.coordinates(replica, logical_core)
        return self._topology.tpu_device_ordinal_at_coordinates(place)

    def host_device(self, replica: int = 0, logical_core: int = 0, job: str | None = None) -> str:
        """The name of the CPU device of the host of a replica's device."""
        place = self.coordinates(replica, logical_core)
        return self._topology.cpu_device_name_at_coordinates(place, job)

    def tpu_device(self, replica: int = 0, logical_core: int = 0, job: str | None = None) -> str:
        """The name of a replica's device."""
        place = self.coordinates(replica, logical_core)
        return self._topology.tpu_device_name_at_coordinates(place, job)


def assigned_devices(assignment: DeviceAssignment, devices: Sequence[jax.Device]) -> list[Any]:
    """The devices of an assignment's replicas, ordered by host.

    Raises `UnknownDevice` if a device of the assignment is not one of `devices`, which this program
    has, and `UsageError` if a replica is on several hosts or a host has no replica.
    """
    live, replicas = Topology.of(devices), list[list[Any]]()
    for places in assignment.core_assignment:
        mine = [assignment.topology.device_at_coordinates(place) for place in places]
        if mine[0] is None:  # the topology was made of numbers
            mine = [live.device_at_coordinates(place) for place in places]
        replicas.append(mine)
    strange = [device for replica in replicas for device in replica if device not in devices]
    if strange:
        raise UnknownDevice(
            f"The assignment has {strange[0]!r} ({strange[0].device_kind}), which is none of this "
            f"program's {len(devices)} devices of kind {devices[0].device_kind}. Build it from the "
            "result of `initialize_tpu_system(resolver)`; to compile for a TPU that is not here, "
            "use `replicax plan`."
        )
    hosts = [sorted({device.process_index for device in replica}) for replica in replicas]
    covered = {host for replica in hosts for host in replica}
    if any(len(replica) > 1 for replica in hosts) or len(covered) < live.num_tasks:
        raise UsageError(
            f"A replica spans hosts, or a host has none: replicas are on the hosts {hosts}, of "
            f"{live.num_tasks} hosts. Choose a computation_shape that divides the chips of a host, "
            "and as many replicas as fit."
        )
    order = sorted(range(len(replicas)), key=lambda replica: hosts[replica])
    return [device for replica in order for device in replicas[replica]]
