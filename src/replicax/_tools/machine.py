"""The machine of a measurement: devices, memory, software, and other programs that keep it busy.

JAX is imported on first use, so that a table can be shown where it is broken.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, final

import replicax as rx
from replicax._core.env import OF_JAX, cores, set_among
from replicax._core.machine.memory import machine_memory

if TYPE_CHECKING:
    import jax


_PACKAGES = ("jax", "jaxlib", "keras", "numpy")


@final
@dataclass(frozen=True)
class Device:
    name: str  # such as `GPU:0`
    kind: str  # the maker's name for it
    platform: str  # `cpu`, `gpu` or `tpu`
    memory_bytes: int | None  # that JAX may use; of a CPU the machine's; None if nobody says


@final
@dataclass(frozen=True)
class Machine:
    """A machine and the software that a measurement ran on.

    `variables` are the environment variables that change JAX, as they were set.
    """

    system: str
    processor: str
    cores: int
    memory_bytes: int | None
    devices: tuple[Device, ...]
    versions: dict[str, str]
    variables: dict[str, str]

    @property
    def shares_cores(self) -> bool:
        """Whether its devices are one CPU that looks like several."""
        return all(device.platform == "cpu" for device in self.devices)


def inspect_machine() -> Machine:
    import jax

    return Machine(
        system=platform.platform(terse=True),
        processor=_processor(),
        cores=cores(),
        memory_bytes=machine_memory(),
        devices=tuple(_describe(device) for device in jax.local_devices()),
        versions={
            "python": platform.python_version(),
            "replicax": rx.__version__,
            **{package: _version(package) for package in _PACKAGES},
        },
        variables=set_among(OF_JAX),
    )


def choose_devices(replicas: int | None) -> list[jax.Device]:
    """The first `replicas` devices of this machine, or all of them."""
    import jax

    devices = jax.local_devices()
    if replicas is not None and replicas > len(devices):
        raise rx.errors.UsageError(
            f"`replicas` must be at most {len(devices)} here "
            f"({name_range(map(device_name, devices))}), got {replicas}. To try more on the CPU, "
            f"start Python with JAX_PLATFORMS=cpu JAX_NUM_CPU_DEVICES={replicas} "
            f"NPROC={max(8, 2 * replicas)}."
        )
    return devices[:replicas]


def device_name(device: jax.Device) -> str:
    return f"{device.platform.upper()}:{device.id}"


def name_range(names: Iterable[str]) -> str:
    """Names in short: `CPU:0-3` for four consecutive ones, else separated by commas."""
    shortened: list[str] = []
    runs: dict[tuple[str, int], list[int]] = {}
    for position, name in enumerate(dict.fromkeys(names)):
        kind = name.rstrip("0123456789")
        number = int(name.removeprefix(kind))
        # Consecutive numbers have the same difference of number and position.
        runs.setdefault((kind, number - position), []).append(number)
    for (kind, _), numbers in runs.items():
        last = f"-{numbers[-1]}" if len(numbers) > 1 else ""
        shortened.append(f"{kind}{numbers[0]}{last}")
    return ", ".join(shortened)


def _describe(device: jax.Device) -> Device:
    statistics = device.memory_stats() or {}
    memory = statistics.get("bytes_limit")
    if memory is None and device.platform == "cpu":
        memory = machine_memory()
    return Device(device_name(device), device.device_kind, device.platform, memory)


def _processor() -> str:
    """The model of the processor if the system tells it, else its architecture."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


_BUSY = 0.2  # the part of the cores that others may take


class OtherPrograms:
    """Measures, from when it is made, how many of this process' cores other programs take."""

    def __init__(self) -> None:
        self._began, self._before = time.perf_counter(), _seconds_of_others()

    def cores(self) -> float:
        """Cores taken until now, on the average; children count once they have ended.

        Cores that this process may not use are not counted. 0 where the system does not tell.
        """
        seconds = _seconds_of_others() - self._before
        spared = (os.cpu_count() or 1) - cores()
        return max(0.0, seconds / (time.perf_counter() - self._began) - spared)


def _seconds_of_others() -> float:
    """CPU seconds that other processes of this machine have used."""
    try:
        fields = Path("/proc/stat").read_text(encoding="utf-8").split(maxsplit=9)[1:9]
    except OSError:
        return 0.0
    user, nice, system, _idle, _waiting, *more = map(int, fields)
    ticks = user + nice + system + sum(more)
    return ticks / os.sysconf("SC_CLK_TCK") - sum(os.times()[:4])


def busy_machine(busy_cores: float) -> str:
    """A note on other programs that took cores; empty if none did."""
    if busy_cores <= _BUSY * cores():
        return ""
    return (
        f"other programs took {busy_cores:.1f} of {cores()} cores meanwhile, so times "
        "and ratios say little. Run again when nothing else runs"
    )
