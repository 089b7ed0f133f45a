"""`tf.config`: the devices of this process, and how programs run; JAX is not started for it.

And `tf.DeviceSpec`, the parts of a device's name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self, final

import jax

from replicax._core.errors import UsageError
from replicax._core.machine import startup
from replicax._core.topology import parse_device

_KINDS = ("CPU", "GPU", "TPU")


class PhysicalDevice(NamedTuple):
    """A device of the machine."""

    name: str
    device_type: str


class LogicalDevice(NamedTuple):
    """A device that programs compute on."""

    name: str
    device_type: str


class LogicalDeviceConfiguration(NamedTuple):
    """One of the virtual devices of a CPU; memory is not limited."""

    memory_limit: int | None = None
    experimental_priority: int | None = None
    experimental_device_ordinal: int | None = None


# What was asked for: devices by their kind, and settings.
_visible: dict[str, list[PhysicalDevice]] = {}
_cpus: list[LogicalDeviceConfiguration] = []
_growth: dict[PhysicalDevice, bool] = {}
_settings: dict[str, Any] = {"soft placement": True, "inter": 0, "intra": 0, "jit": ""}
_options: dict[str, Any] = {}


def list_physical_devices(device_type: str | None = None) -> list[PhysicalDevice]:
    """The devices of this machine. JAX is not started: strategies can still join a cluster.

    **Differs from TF:** GPUs that JAX has no plugin for are not listed.

    Example:
        >>> import replicax.tf as tf
        >>> tf.config.list_physical_devices("CPU")
        [PhysicalDevice(name='/physical_device:CPU:0', device_type='CPU')]
    """
    found = []
    for kind in _kinds(device_type):
        hidden = len(_visible.get(kind, ()))
        known = startup.count_accelerators(kind) if kind in ("GPU", "TPU") else 0
        count = 1 if kind == "CPU" else max(known, hidden)
        found += [PhysicalDevice(f"/physical_device:{kind}:{n}", kind) for n in range(count)]
    return found


def list_logical_devices(device_type: str | None = None) -> list[LogicalDevice]:
    """The devices that programs compute on: the visible ones, and what a CPU is divided into."""
    found = []
    for kind in _kinds(device_type):
        is_cpu = kind == "CPU"
        count = startup.count_cpu_devices() if is_cpu else len(get_visible_devices(kind))
        found += [LogicalDevice(f"/device:{kind}:{n}", kind) for n in range(count)]
    return found


def _kinds(device_type: str | None) -> Sequence[str]:
    return _KINDS if device_type is None else [device_type]


class DeviceAttributes(NamedTuple):
    """A device, as `device_lib.list_local_devices` of TensorFlow's own modules describes it."""

    name: str
    device_type: str
    memory_limit: int
    physical_device_desc: str


def list_local_devices(session_config: Any = None) -> list[DeviceAttributes]:
    """The devices that programs compute on; JAX is not started, and no memory is known."""
    return [DeviceAttributes(*device, 0, "") for device in list_logical_devices()]


def get_visible_devices(device_type: str | None = None) -> list[PhysicalDevice]:
    """The devices that this process may use."""
    return [
        device
        for kind in _kinds(device_type)
        for device in _visible.get(kind, list_physical_devices(kind))
    ]


def set_visible_devices(devices: Any, device_type: str | None = None) -> None:
    """Let this process use these devices only; the CPU can always be used.

    Raises:
        UsageError: If there is no such device, or a TPU is to be hidden.
        BackendAlreadyInitialized: If JAX was used before.
    """
    chosen = [devices] if isinstance(devices, PhysicalDevice) else list(devices)
    known = list_physical_devices(device_type)
    strange = [device for device in chosen if device not in known]
    hidden = [d for d in known if d.device_type == "TPU" and d not in chosen]
    if strange or hidden:
        raise UsageError(
            f"Cannot make only {strange or chosen} visible. "
            + (
                f"Choose from {known}."
                if strange
                else "A process uses all TPU chips of its host: add the others."
            )
        )
    for kind in _kinds(device_type):
        mine = [device for device in chosen if device.device_type == kind]
        if kind == "GPU":
            numbers = [int(device.name.rpartition(":")[2]) for device in mine]
            startup.use_gpus(numbers, of=len(list_physical_devices(kind)))
        _visible[kind] = mine


def set_logical_device_configuration(
    device: PhysicalDevice, logical_devices: Sequence[LogicalDeviceConfiguration]
) -> None:
    """Let a CPU be several devices, to try strategies on.

    Raises:
        UsageError: If a GPU or TPU is to be divided, or limited.
        BackendAlreadyInitialized: If JAX was used before.

    Example:
        >>> import replicax.tf as tf
        >>> cpu = tf.config.list_physical_devices("CPU")[0]
        >>> tf.config.set_logical_device_configuration(
        ...     cpu, [tf.config.LogicalDeviceConfiguration()] * 8)
        >>> len(tf.config.list_logical_devices("CPU"))
        8
    """
    given = list(logical_devices)
    limited = any(one.memory_limit is not None for one in given)
    if device.device_type != "CPU" and (len(given) != 1 or limited):
        raise UsageError(
            f"Cannot divide {device.name} into {len(given)} logical devices "
            f"{'with' if limited else 'without'} a limit: JAX divides CPUs only. Use CPU devices "
            "to try a strategy. To limit the memory of GPUs, set the environment variable "
            "XLA_PYTHON_CLIENT_MEM_FRACTION."
        )
    if device.device_type == "CPU":
        startup.set_cpu_devices(len(given))
        _cpus[:] = given


def get_logical_device_configuration(
    device: PhysicalDevice,
) -> list[LogicalDeviceConfiguration] | None:
    """The value of `set_logical_device_configuration`; None if it was not called."""
    return list(_cpus) or None if device.device_type == "CPU" else None


def set_memory_growth(device: PhysicalDevice, enable: bool) -> None:
    """Let JAX take a GPU's memory as it needs it; else it takes most of it when it starts.

    **Differs from TF:** it holds for all GPUs of the process.

    Raises:
        UsageError: If the device is no GPU.
        BackendAlreadyInitialized: If JAX was used before.
    """
    if device.device_type != "GPU":
        raise UsageError(
            f"Cannot set memory growth of {device.name}: only GPUs have it. Leave the call out "
            "for other devices."
        )
    if get_memory_growth(device) != enable:
        startup.grow_gpu_memory(enable)
        _growth[device] = enable


def get_memory_growth(device: PhysicalDevice) -> bool:
    """Whether memory of the device is taken as it is needed."""
    return _growth.get(device, device.device_type != "GPU")


def get_memory_info(device: str) -> dict[str, int]:
    """The bytes that are in use on an accelerator now, `current`, and were at most, `peak`.

    Raises:
        UsageError: If JAX does not count the memory of the device.
    """
    found = parse_device(device).memory_stats()
    if not found:
        raise UsageError(
            f"No memory figures for {device!r}: JAX counts the memory of accelerators only. Ask "
            "the operating system."
        )
    return {"current": found["bytes_in_use"], "peak": found["peak_bytes_in_use"]}


def get_memory_usage(device: str) -> int:
    """The bytes that are in use on an accelerator now."""
    return get_memory_info(device)["current"]


def get_device_details(device: PhysicalDevice) -> dict[str, Any]:
    """The name of a GPU or TPU."""
    if device.device_type == "CPU":
        return {}
    return {"device_name": parse_device(device.name.replace("/physical_device:", "")).device_kind}


def set_soft_device_placement(enabled: bool) -> None:
    """Whether `tf.device` of a device that is not there takes another one, or is an error."""
    _settings["soft placement"] = enabled


def get_soft_device_placement() -> bool:
    """The value of `set_soft_device_placement`; True by default."""
    return _settings["soft placement"]


def enable_tensor_float_32_execution(enabled: bool) -> None:
    """Whether products of float32 matrices may be computed in less precision where it is faster."""
    jax.config.update("jax_default_matmul_precision", None if enabled else "highest")


def tensor_float_32_execution_enabled() -> bool:
    """Whether they may."""
    return getattr(jax.config, "jax_default_matmul_precision", None) != "highest"


def set_jit(enabled: bool | str) -> None:
    """Noted; everything is compiled by XLA."""
    _settings["jit"] = "autoclustering" if enabled is True else enabled or ""


def get_jit() -> str:
    """The value of `set_jit`; empty by default."""
    return _settings["jit"]


def set_experimental_options(options: Mapping[str, Any]) -> None:
    """Noted; XLA has its own."""
    _options.update(options)


def get_experimental_options() -> dict[str, Any]:
    """The value of `set_experimental_options`."""
    return dict(_options)


def set_inter_op_parallelism_threads(num_threads: int) -> None:
    """Noted; XLA chooses its threads by the cores."""
    _settings["inter"] = num_threads


def get_inter_op_parallelism_threads() -> int:
    """The value of `set_inter_op_parallelism_threads`; 0 by default."""
    return _settings["inter"]


def set_intra_op_parallelism_threads(num_threads: int) -> None:
    """Noted; XLA chooses its threads by the cores."""
    _settings["intra"] = num_threads


def get_intra_op_parallelism_threads() -> int:
    """The value of `set_intra_op_parallelism_threads`; 0 by default."""
    return _settings["intra"]


_PART = re.compile(
    r"job:(?P<job>[\w.-]+)|replica:(?P<replica>\d+)|task:(?P<task>\d+)"
    r"|(?:device:|(?=(?i:[cgt]pu)\b))(?P<device_type>[A-Za-z_]+)(?::(?P<device_index>\d+|\*))?"
)


@final
@dataclass(frozen=True)
class DeviceSpec:
    """The parts of a device's name; `tf.device` and strategies take it like the name.

    Example:
        >>> import replicax.tf as tf
        >>> spec = tf.DeviceSpec.from_string("/job:worker/task:1/gpu:0")
        >>> spec.replace(task=2).to_string(), spec.device_type
        ('/job:worker/task:2/device:GPU:0', 'GPU')
    """

    job: str | None = None
    replica: int | None = None
    task: int | None = None
    device_type: str | None = None
    device_index: int | None = None

    def __post_init__(self) -> None:
        if self.device_type is not None:
            object.__setattr__(self, "device_type", self.device_type.upper())

    @classmethod
    def from_string(cls, spec: str) -> Self:
        """The parts of a name.

        Raises:
            UsageError: If it is none.
        """
        found: dict[str, str] = {}
        for part in filter(None, spec.split("/")):
            match = _PART.fullmatch(part)
            if match is None:
                raise UsageError(
                    f"Cannot read device {spec!r}: {part!r} is not a part of a name such as "
                    "'/job:worker/task:0/device:GPU:1'."
                )
            found |= {name: value for name, value in match.groupdict().items() if value}
        texts = ("job", "device_type")
        return cls(**{k: v if k in texts else int(v) for k, v in found.items() if v != "*"})  # pyright: ignore[reportArgumentType]

    parse_from_string = from_string

    def to_string(self) -> str:
        """The name."""
        named = (("job", self.job), ("replica", self.replica), ("task", self.task))
        text = "".join(f"/{name}:{value}" for name, value in named if value is not None)
        if self.device_type is None:
            return text
        index = "*" if self.device_index is None else self.device_index
        return f"{text}/device:{self.device_type}:{index}"

    __str__ = to_string

    def make_merged_spec(self, dev: DeviceSpec) -> DeviceSpec:
        """These parts, with those that the other one has in their places."""
        return replace(self, **{k: v for k, v in vars(dev).items() if v is not None})

    def replace(self, **kwargs: Any) -> DeviceSpec:
        """These parts, with others in their places."""
        return replace(self, **kwargs)
