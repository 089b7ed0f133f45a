"""The places of a TPU's devices in its mesh of chips: `Topology`, by TensorFlow's names.

It is not the topology of a strategy's replicas, which is in `_core/topology.py`.
"""

from __future__ import annotations

import functools
import itertools
import json
import logging
import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, final

import jax
import numpy as np

from replicax._core.errors import UnknownDevice, UsageError
from replicax._core.options import CommunicationOptions
from replicax._mesh.processes import start
from replicax.cluster_resolver import ClusterResolver, TPUClusterResolver

_LOG = logging.getLogger("replicax")
RANK = 4  # x, y and z of the chip, and the core on it


@final
class Topology:
    """The mesh of a TPU's chips, and the coordinates of each host's devices in it.

    **Differs from TF:** `serialized` is JSON. After a fallback to other devices, these have the
    mesh of a TPU v5e with the same number of chips: eight devices are 2 × 4.

    Args:
        serialized: The result of `serialized()`, instead of the other arguments.
        mesh_shape: The size of the mesh: x, y, z, and cores on a chip.
        device_coordinates: The coordinates of the devices of each host: an array of
            shape (hosts, devices of a host, 4).

    Raises:
        UsageError: If the coordinates do not fit the mesh.

    Example:
        >>> from replicax.tpu.experimental import Topology
        >>> topology = Topology(mesh_shape=[1, 2, 1, 1],
        ...                     device_coordinates=[[[0, 0, 0, 0]], [[0, 1, 0, 0]]])
        >>> topology.num_tasks, topology.num_tpus_per_task
        (2, 1)
        >>> topology.tpu_device_name_at_coordinates([0, 1, 0, 0], job="worker")
        '/job:worker/task:1/device:TPU:0'
    """

    def __init__(
        self,
        serialized: bytes | None = None,
        mesh_shape: Sequence[int] | None = None,
        device_coordinates: Any = None,
    ) -> None:
        if serialized is not None:
            mesh_shape, device_coordinates = json.loads(serialized)
        self._mesh_shape = np.asarray(mesh_shape, np.int32)
        self._coordinates = np.asarray(device_coordinates, np.int32)
        self._devices: dict[tuple[int, ...], jax.Device] = {}
        _check(self._mesh_shape, self._coordinates)
        self._tasks = np.full(self._mesh_shape, -1, np.int32)
        self._ordinals = np.full(self._mesh_shape, -1, np.int32)
        for task, devices in enumerate(self._coordinates):
            for ordinal, place in enumerate(devices):
                self._tasks[tuple(place)] = task
                self._ordinals[tuple(place)] = ordinal

    @classmethod
    def of(cls, devices: Sequence[jax.Device]) -> Topology:
        """The topology of JAX devices, or of described ones.

        Args:
            devices: All devices of one kind.

        Raises:
            UsageError: If the hosts have different numbers of devices.
        """
        ordered = sorted(devices, key=lambda device: (device.process_index, device.id))
        counts = Counter(device.process_index for device in ordered)
        if len(set(counts.values())) != 1:
            raise UsageError(
                f"The hosts have different numbers of devices, {dict(counts)}. Pass all devices of "
                "the slice, or none of a host."
            )
        places = _places(ordered)
        found = cls(None, places.max(0) + 1, places.reshape(len(counts), -1, RANK))
        found._devices = {tuple(map(int, p)): d for p, d in zip(places, ordered, strict=True)}
        return found

    @property
    def mesh_shape(self) -> np.ndarray:
        """The size of the mesh: x, y, z, and cores on a chip."""
        return self._mesh_shape

    @property
    def mesh_rank(self) -> int:
        """The number of coordinates of a device: four."""
        return len(self._mesh_shape)

    @property
    def device_coordinates(self) -> np.ndarray:
        """The coordinates of the devices: an array of shape (hosts, devices of a host, 4)."""
        return self._coordinates

    @property
    def missing_devices(self) -> np.ndarray:
        """The coordinates without a device."""
        return np.argwhere(self._tasks < 0)

    @property
    def num_tasks(self) -> int:
        """The number of hosts."""
        return self._coordinates.shape[0]

    @property
    def num_tpus_per_task(self) -> int:
        """The number of devices of a host."""
        return self._coordinates.shape[1]

    def task_ordinal_at_coordinates(self, device_coordinates: Sequence[int]) -> int:
        """The number of the host of the device at these coordinates."""
        return int(self._tasks[self._there(device_coordinates)])

    def tpu_device_ordinal_at_coordinates(self, device_coordinates: Sequence[int]) -> int:
        """The number of the device at these coordinates on its host."""
        return int(self._ordinals[self._there(device_coordinates)])

    def cpu_device_name_at_coordinates(
        self, device_coordinates: Sequence[int], job: str | None = None
    ) -> str:
        """The name of the CPU device of the host of the device at these coordinates."""
        task = self.task_ordinal_at_coordinates(device_coordinates)
        return f"{_job(job)}/task:{task}/device:CPU:0"

    def tpu_device_name_at_coordinates(
        self, device_coordinates: Sequence[int], job: str | None = None
    ) -> str:
        """The name of the device at these coordinates."""
        task = self.task_ordinal_at_coordinates(device_coordinates)
        ordinal = self.tpu_device_ordinal_at_coordinates(device_coordinates)
        return f"{_job(job)}/task:{task}/device:TPU:{ordinal}"

    def device_at_coordinates(self, device_coordinates: Sequence[int]) -> jax.Device | None:
        """The JAX device at these coordinates; None if the topology was made from coordinates."""
        return self._devices.get(self._there(device_coordinates))

    def serialized(self) -> bytes:
        """The topology as text, for `Topology(serialized=…)`."""
        return json.dumps([self._mesh_shape.tolist(), self._coordinates.tolist()]).encode()

    def _there(self, coordinates: Sequence[int]) -> tuple[int, ...]:
        place = tuple(int(number) for number in coordinates)
        fits = len(place) == RANK and all(0 <= n < m for n, m in zip(place, self._mesh_shape))  # noqa: B905
        if not fits or self._tasks[place] < 0:
            raise UsageError(
                f"No device at {list(place)} in a mesh of {self._mesh_shape.tolist()}. Use "
                "coordinates of `topology.device_coordinates`: x, y, z and the core, from 0."
            )
        return place


def _check(mesh_shape: np.ndarray, coordinates: np.ndarray) -> None:
    shaped = mesh_shape.shape == (RANK,) and bool((mesh_shape > 0).all())
    placed = shaped and coordinates.ndim == 3 and coordinates.shape[2] == RANK
    if not placed or not ((coordinates >= 0) & (coordinates < mesh_shape)).all():
        raise UsageError(
            f"mesh_shape={mesh_shape.tolist()} and device_coordinates of shape {coordinates.shape} "
            "make no topology. Pass the sizes of x, y, z and cores, and an array of shape (hosts, "
            "devices of a host, 4) with numbers from 0 below these sizes."
        )


def _places(devices: Sequence[jax.Device]) -> np.ndarray:
    """The coordinates of devices; several slices are lined up along z."""
    if getattr(devices[0], "coords", None) is None:
        return _as_v5e(len(devices))
    found = np.array([[*device.coords, device.core_on_chip] for device in devices])
    found -= found.min(0)
    slices = np.array([getattr(device, "slice_index", 0) or 0 for device in devices])
    found[:, 2] += slices * (found[:, 2].max() + 1)
    return found


def _as_v5e(count: int) -> np.ndarray:
    """A mesh of two axes, as square as the number allows, with x as the shorter axis."""
    x = max(size for size in range(1, count + 1) if size * size <= count and count % size == 0)
    numbers = np.arange(count)
    return np.stack([numbers % x, numbers // x, 0 * numbers, 0 * numbers], axis=1)


def _job(job: str | None) -> str:
    return "" if job is None else f"/job:{job}"


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


def initialize_tpu_system(cluster_resolver: ClusterResolver | None = None) -> Topology:
    """Join the other hosts of the TPU, start its chips, and read their topology.

    **Differs from TF:** the call is optional, and a second call loses nothing, because JAX starts
    the chips once.

    Args:
        cluster_resolver: The resolver of the hosts. Defaults to `TPUClusterResolver()`.

    Returns:
        The topology of the devices. After a fallback, a topology that a TPU would have.

    Raises:
        ClusterSpecError: If there is no TPU and no fallback.
        UnknownDevice: If JAX has no device of the TPU.

    Example:
        >>> import replicax as rx
        >>> resolver = rx.cluster_resolver.TPUClusterResolver(tpu="auto", fallback=("cpu",))
        >>> topology = rx.tpu.experimental.initialize_tpu_system(resolver)
        >>> topology.num_tasks
        1
    """
    resolver = cluster_resolver or TPUClusterResolver()
    topology = Topology.of(devices_of(resolver))
    if isinstance(resolver, TPUClusterResolver):
        resolver.set_tpu_topology(topology)
    return topology


def shutdown_tpu_system(cluster_resolver: ClusterResolver | None = None) -> None:
    """Clear JAX's caches of compiled programs.

    **Differs from TF:** the chips are released when the program ends, not before.

    Args:
        cluster_resolver: A resolver, whose topology is cleared as well.

    Example:
        >>> import replicax as rx
        >>> rx.tpu.experimental.shutdown_tpu_system()
    """
    jax.clear_caches()
    if isinstance(cluster_resolver, TPUClusterResolver):
        cluster_resolver.set_tpu_topology(None)


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
