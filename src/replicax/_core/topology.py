"""Which devices form a replica and which of them this process drives.

Device names are parsed here; inside the library there are only `jax.Device` objects.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import final

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from replicax._core.errors import UnknownDevice, UsageError
from replicax._core.machine.startup import begin

AXIS = "replica"
# The second axis, where several devices hold one replica.
MODEL = "model"

# An argument: a number of devices, a name or platform, one device, or a list.
Devices = int | str | jax.Device | Sequence[str | jax.Device]

_VIRTUAL_DEVICES = (
    "For virtual CPU devices call `replicax.testing.virtual_devices(n)` at the top of the program."
)
# Bytes; smaller arrays are copied faster than CPU devices synchronize for an all-reduce.
_SMALL = 1 << 18
_DEVICE_NAME = re.compile(
    r"^(?:/job:[^/]*)?(?:/replica:\d+)?(?:/task:\d+)?/?(?:device:)?([a-z_]+):?(\d+)?$"
)


@final
@dataclass(frozen=True)
class Topology:
    """The replicas of a strategy as a JAX mesh: the axis `replica`, and perhaps `model`.

    Without the second axis a replica is one device; with it, each row of the mesh.
    """

    mesh: Mesh
    process_index: int = 0
    num_processes: int = 1

    @classmethod
    def single(cls, device: str | jax.Device | None = None) -> Topology:
        """One replica, on `device` or on JAX's default device."""
        begin()
        return cls.of([default_device() if device is None else parse_device(device)])

    @classmethod
    def local(cls, devices: Devices | None = None, *, model_parallel: int = 1) -> Topology:
        """One replica per device of this process; by default every accelerator, else every CPU.

        `model_parallel` of them, in this order, hold one replica together.
        """
        begin()
        chosen = _chosen(devices)
        repeated = sorted({device_name(device) for device in chosen if chosen.count(device) > 1})
        if repeated:
            raise UnknownDevice(
                f"{', '.join(repeated)} is named more than once; a device holds one replica. "
                f"{_VIRTUAL_DEVICES}"
            )
        return cls.of(chosen, model_parallel)

    @classmethod
    def cluster(cls) -> Topology:
        """One replica per device of every process that has joined, in the order of the workers."""
        begin()
        devices = sorted(jax.devices(), key=lambda device: (device.process_index, device.id))
        whole = cls.of(devices)
        return replace(whole, process_index=jax.process_index(), num_processes=jax.process_count())

    @classmethod
    def of(cls, devices: Sequence[jax.Device], model_parallel: int = 1) -> Topology:
        """The replicas that these devices form, in their order, `model_parallel` of them each.

        They may be descriptions of `jax.experimental.topologies`, to compile for. No backend is
        started.
        """
        found = np.array(devices, dtype=object).reshape(-1)
        if model_parallel < 1 or len(found) % model_parallel:
            divisors = [str(one) for one in range(1, len(found) + 1) if len(found) % one == 0]
            raise UsageError(
                f"`model_parallel` must divide the number of devices, {len(found)}, got "
                f"{model_parallel}. Use one of {', '.join(divisors)}, or pass other devices."
            )
        if model_parallel == 1:
            return cls(Mesh(found, (AXIS,)))
        return cls(Mesh(found.reshape(-1, model_parallel), (AXIS, MODEL)))

    @cached_property
    def devices(self) -> tuple[jax.Device, ...]:
        return tuple(self.mesh.devices.flat)

    @cached_property
    def firsts(self) -> tuple[jax.Device, ...]:
        """The first device of each replica, which the replica is named after."""
        return self.devices[:: self.model_parallel]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The name of each replica's first device; with several workers, of its worker, too."""
        if self.num_processes == 1:
            return tuple(map(device_name, self.firsts))
        own = Counter[int]()
        names = []
        for device in self.devices:
            worker = device.process_index
            kind = device.platform.upper()
            names.append(f"/job:worker/task:{worker}/device:{kind}:{own[worker]}")
            own[worker] += 1
        return tuple(names[:: self.model_parallel])

    @cached_property
    def num_replicas(self) -> int:
        return self.mesh.shape[AXIS]

    @cached_property
    def model_parallel(self) -> int:
        return self.mesh.shape.get(MODEL, 1)

    @cached_property
    def local_replicas(self) -> tuple[int, ...]:
        """The numbers of the replicas that this process drives."""
        if self.num_processes == 1:
            return tuple(range(self.num_replicas))
        index = self.process_index
        return tuple(r for r, one in enumerate(self.firsts) if one.process_index == index)

    @cached_property
    def platform(self) -> str:
        """`cpu`, `gpu` or `tpu`."""
        return self.devices[0].platform

    @cached_property
    def replicated(self) -> NamedSharding:
        """The whole value on every device."""
        return NamedSharding(self.mesh, PartitionSpec())

    @cached_property
    def split(self) -> NamedSharding:
        """Axis 0 divided over the replicas."""
        return NamedSharding(self.mesh, PartitionSpec(AXIS))

    @property
    def pays_per_operation(self) -> bool:
        """Whether each array of an all-reduce is one network operation, even if XLA merges them."""
        return self.platform == "cpu" and self.num_processes > 1

    @property
    def packs_up_to(self) -> int | None:
        """The largest array, in bytes, to all-reduce in a buffer with others; 0 for any size.

        None for no buffers. CPU devices of one process synchronize for each array of an all-reduce,
        even a merged one, for 50 to 100 µs: longer than it takes to copy a small array.
        """
        if self.platform != "cpu":
            return None
        return 0 if self.num_processes > 1 else _SMALL


def may_deadlock(devices: Collection[jax.Device]) -> bool:
    """Whether overlapping steps on these devices can deadlock."""
    return len(devices) > 1 and next(iter(devices)).platform == "cpu"


def default_device() -> jax.Device:
    chosen = getattr(jax.config, "jax_default_device", None)
    return chosen if isinstance(chosen, jax.Device) else jax.local_devices()[0]


def default_devices() -> list[jax.Device]:
    """Every local accelerator, or every local CPU device when there is no accelerator."""
    try:
        return jax.local_devices()
    except AssertionError as error:  # which JAX raises without a text
        raise UnknownDevice(
            "No device here of the platforms that JAX_PLATFORMS or `jax.config` names. Unset it or "
            "run `replicax doctor`. See docs/install.md."
        ) from error


def device_name(device: jax.Device) -> str:
    """The short name of a device, such as `GPU:0`; as this process counts its own."""
    # A described device belongs to no backend; its number is its id.
    own = device.client.local_devices()
    number = own.index(device) if device in own else device.id
    return f"{device.platform.upper()}:{number}"


def parse_device(device: str | jax.Device) -> jax.Device:
    """Find the device that a TensorFlow-like name means.

    Names are `"GPU:0"`, `"/gpu:0"`, `"/device:CPU:1"`, `"cpu"`, and fully qualified ones of
    TensorFlow. `UnknownDevice` if there is none: TensorFlow takes the CPU instead, silently.
    """
    if isinstance(device, jax.Device):
        return device
    platform, index = _platform_and_index(device)
    # Not by `id`, which counts the devices of all processes.
    own = _devices_of(platform)
    if index is None or index < len(own):
        return own[index or 0]
    raise _unknown(device, platform)


def _chosen(devices: Devices | None) -> list[jax.Device]:
    if isinstance(devices, bool | float):
        raise UsageError.of("devices", "names, a number of devices, or None", devices)
    if isinstance(devices, int | np.integer):
        found = default_devices()
        if not 0 < devices <= len(found):
            raise UnknownDevice(f"Cannot use {devices} devices: {_here()} {_VIRTUAL_DEVICES}")
        return found[:devices]
    if isinstance(devices, str):
        names = [name.strip() for name in devices.split(",")]
        platform, index = _platform_and_index(names[0])
        if len(names) == 1 and index is None:
            return _devices_of(platform)
        return list(map(parse_device, names))
    if isinstance(devices, jax.Device):
        return [devices]
    return [parse_device(device) for device in devices or ()] or default_devices()


def _platform_and_index(name: str) -> tuple[str, int | None]:
    match = _DEVICE_NAME.match(str(name).strip().lower())
    platform = match.group(1) if match else ""
    if match is None or not _devices_of(platform):
        raise _unknown(name, platform)
    return platform, None if match.group(2) is None else int(match.group(2))


def _unknown(device: object, platform: str) -> UnknownDevice:
    hints = {
        "gpu": "For NVIDIA GPUs run `pip install 'replicax[cuda]'`.",
        "cuda": "Write 'GPU:0'. For NVIDIA GPUs run `pip install 'replicax[cuda]'`.",
        "tpu": "For TPUs run `pip install 'replicax[tpu]'` on a TPU VM.",
        "cpu": _VIRTUAL_DEVICES,
    }
    is_installed = platform != "cpu" and bool(_devices_of(platform))
    hint = hints.get("" if is_installed else platform, "Use one of these names.")
    return UnknownDevice(f"No device {device!r} here; {_here()} {hint} See docs/install.md.")


def _here() -> str:
    """Name the devices of this process: "JAX sees GPU:0-1, CPU:0."."""
    devices = dict.fromkeys([*default_devices(), *_devices_of("cpu")])
    counts = Counter(device.platform.upper() for device in devices)
    names = [f"{kind}:0-{n - 1}" if n > 1 else f"{kind}:0" for kind, n in counts.items()]
    return f"JAX sees {', '.join(names)}."


def _devices_of(platform: str) -> list[jax.Device]:
    try:
        return jax.local_devices(backend=platform)
    except (RuntimeError, AssertionError):
        return []


def central_device(topology: Topology) -> jax.Device:
    """Where central storage keeps variables by default: the only device, else the first CPU."""
    return topology.devices[0] if topology.num_replicas == 1 else _devices_of("cpu")[0]
