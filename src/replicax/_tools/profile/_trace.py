"""The files of JAX's profiler → what each device did, and when.

On CPUs, a program's operations are events of the threads that computed them, which name the device;
on GPUs and TPUs each device has a plane of its own. On GPUs its events are kernels. Those of a CUDA
graph, which XLA calls a command buffer, all name that as their operation.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, final

import jax

from replicax._tools.plan._collectives import KINDS
from replicax._tools.profile._recorder import STEP
from replicax._tools.profile._split import covered, union

if TYPE_CHECKING:
    from pathlib import Path

# operations that contain others with events of their own
_CONTAINERS = ("while", "conditional", "call")
_OF_DEVICE = re.compile(r"/device:\w+:(\d+)")
_OF_NCCL = "nccl"  # what its kernels are called, such as `ncclDevKernel_AllReduce_Sum_f32_RING_LL`


class Operation(NamedTuple):
    """An operation of a program on one device; times in seconds."""

    name: str
    begin: float
    end: float


@final
@dataclass(frozen=True)
class DeviceTimes:
    """What one device did in the steps that were traced, in seconds for each step.

    A device in a collective communicates, or waits for others. Collectives and callbacks to Python
    count while nothing is computed beside them.
    """

    device: int
    own: float
    collectives: float
    callbacks: float

    @property
    def busy(self) -> float:
        """How long it did anything."""
        return self.own + self.collectives + self.callbacks


def trace_file(folder: Path) -> Path | None:
    """The file that the profiler wrote last below a folder."""
    found = sorted(folder.glob("plugins/profile/*/*.xplane.pb"))
    return found[-1] if found else None


def operations(
    file: Path, steps: Collection[int], platform: str = "cpu"
) -> dict[int, list[Operation]]:
    """The operations of each device of a platform, by its number, in the steps of these numbers."""
    data: Any = jax.profiler.ProfileData.from_file(str(file))
    found: dict[int, list[Operation]] = defaultdict(list)
    inside: list[tuple[float, float]] = []
    for plane in data.planes:
        own = _OF_DEVICE.search(plane.name)
        for event in (event for line in plane.lines for event in line.events):
            stats = dict(event.stats)
            begin = event.start_ns / 1e9
            end = begin + event.duration_ns / 1e9
            name = _name(event.name, stats)
            if own and platform != "cpu":
                if name:
                    found[int(own[1])].append(Operation(name, begin, end))
            elif name and platform == "cpu" and stats.get("device_ordinal") is not None:
                found[int(stats["device_ordinal"])].append(Operation(name, begin, end))
            elif event.name == STEP and int(stats.get("step_num", -1)) in steps:
                inside.append((begin, end))
    return {
        device: [one for one in done if any(b <= one.begin < e for b, e in inside)]
        for device, done in found.items()
    }


def _name(event: str, stats: Mapping[str, Any]) -> str:
    """The operation of an event; of a kernel, its own name where that tells more."""
    operation = str(stats.get("hlo_op") or "")
    is_kernel = "kernel_details" in stats
    if is_kernel and (
        event.startswith(_OF_NCCL) or not operation or operation.startswith(_CONTAINERS)
    ):
        return event
    return operation


def device_times(
    devices: Mapping[int, Sequence[Operation]],
    steps: int,
    *,
    communication: Collection[str] = (),
    callbacks: Collection[str] = (),
) -> tuple[DeviceTimes, ...]:
    """The work of each device in this many steps.

    `communication` has the names of collective operations, beside those recognized by kind;
    `callbacks` those of operations that call Python.
    """
    return tuple(
        _times(device, devices[device], steps, communication, callbacks)
        for device in sorted(devices)
    )


def _times(
    device: int,
    done: Iterable[Operation],
    steps: int,
    collectives: Collection[str],
    callbacks: Collection[str],
) -> DeviceTimes:
    own: list[tuple[float, float]] = []
    communication: list[tuple[float, float]] = []
    python: list[tuple[float, float]] = []
    for one in done:
        if one.name in callbacks:
            python.append((one.begin, one.end))
        elif one.name in collectives or one.name.startswith((*KINDS, _OF_NCCL)):
            communication.append((one.begin, one.end))
        elif not one.name.startswith(_CONTAINERS):
            own.append((one.begin, one.end))
    computing = covered(own)
    with_python = covered([*own, *python])
    everything = covered([*union(own), *union(python), *communication])
    return DeviceTimes(
        device,
        computing / steps,
        (everything - with_python) / steps,
        (with_python - computing) / steps,
    )
