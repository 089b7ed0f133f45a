"""The places of a TPU's devices in its mesh of chips: `Topology`, by TensorFlow's names.

It is not the topology of a strategy's replicas, which is in `_core/topology.py`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any, final

import jax
import numpy as np

from replicax._core.errors import UsageError

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
