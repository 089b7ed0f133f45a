"""Spans of time and JAX's traces → the seconds of each part of a step, and of each device.

In the profiler's files, a program's operations on CPUs are events of the threads that computed
them, which name the device; on GPUs and TPUs each device has a plane of its own. On GPUs its events
are kernels. Those of a CUDA graph, which XLA calls a command buffer, all name that as their
operation."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from replicax._core.events import COMPILE
from replicax._tools.plan.hlo import KINDS

if TYPE_CHECKING:
    from pathlib import Path


PYTHON, OTHER, CALLBACKS = "python", "other", "callbacks"


class Moment(NamedTuple):
    """A moment of the main thread: the time, and its computing time so far, in seconds."""

    wall: float
    cpu: float


@dataclass(frozen=True)
class Span:
    """A part of a step, from a moment to another one."""

    part: str
    begin: Moment
    end: Moment


@dataclass(frozen=True)
class Step:
    """A step, from its begin to the next one's; `number` counts training steps before it."""

    kind: str
    begin: Moment
    end: Moment
    number: int = 0
    is_traced: bool = False

    @property
    def seconds(self) -> float:
        return self.end.wall - self.begin.wall


def split(step: Step, spans: Iterable[Span]) -> dict[str, float]:
    """The seconds that each part of a step took; together they are the step.

    A moment in several spans belongs to the one that began last, which the others contain. Time
    outside all spans is `PYTHON` if the main thread computed, and `OTHER` if not: it waited for
    something unreported. Spans may reach beyond the step.
    """
    inside = sorted(
        (span for span in spans if _overlap(span, step) > 0), key=lambda span: span.begin.wall
    )
    found: dict[str, float] = defaultdict(float)
    outer: list[Span] = []
    for number, span in enumerate(inside):
        own = _overlap(span, step) - covered(
            (one.begin.wall, min(one.end.wall, span.end.wall, step.end.wall))
            for one in inside[number + 1 :]
            if one.begin.wall < span.end.wall
        )
        found[span.part] += max(0.0, own)
        if not outer or span.begin.wall >= outer[-1].end.wall:
            outer.append(span)
    rest = max(0.0, step.seconds - sum(found.values()))
    computed = step.end.cpu - step.begin.cpu - sum(map(_cpu, outer))
    found[PYTHON] = min(rest, max(0.0, computed))
    found[OTHER] = rest - found[PYTHON]
    return dict(found)


def mean(steps: Sequence[Step], spans: Sequence[Span]) -> dict[str, float]:
    """The average seconds of each part of a step."""
    total: dict[str, float] = defaultdict(float)
    for step in steps:
        near = [one for one in spans if _overlap(one, step) > 0]
        for part, seconds in split(step, near).items():
            total[part] += seconds / len(steps)
    return dict(total)


def covered(intervals: Iterable[tuple[float, float]]) -> float:
    """The time that at least one of these intervals covers.

    Example:
        >>> from replicax._tools.profile.times import covered
        >>> covered([(0, 2), (1, 3), (5, 6)])
        4
    """
    return sum(end - begin for begin, end in union(intervals))


def union(intervals: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """The same moments as disjoint intervals."""
    found: list[tuple[float, float]] = []
    for begin, end in sorted(intervals):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        elif end > begin:
            found.append((begin, end))
    return found


def _overlap(span: Span, step: Step) -> float:
    return min(span.end.wall, step.end.wall) - max(span.begin.wall, step.begin.wall)


def _cpu(span: Span) -> float:
    # JAX reports a compilation at its end, without its thread's computing time.
    if span.part == COMPILE:
        return max(span.end.cpu - span.begin.cpu, span.end.wall - span.begin.wall)
    return span.end.cpu - span.begin.cpu


STEP = "train"  # the name of a step in the trace
# operations that contain others with events of their own
_CONTAINERS = ("while", "conditional", "call")
_OF_DEVICE = re.compile(r"/device:\w+:(\d+)")
_OF_NCCL = "nccl"  # the prefix of its kernels, such as `ncclDevKernel_AllReduce_Sum_f32_RING_LL`


class Operation(NamedTuple):
    """An operation of a program on one device; times in seconds."""

    name: str
    begin: float
    end: float


@dataclass(frozen=True)
class DeviceTimes:
    """How one device spent the traced steps, in seconds per step.

    A device in a collective communicates, or waits for others. Collectives and callbacks to Python
    count while nothing is computed beside them.
    """

    device: int
    own: float
    collectives: float
    callbacks: float

    @property
    def busy(self) -> float:
        return self.own + self.collectives + self.callbacks


def trace_file(folder: Path) -> Path | None:
    """The file that the profiler wrote last below a folder."""
    found = sorted(folder.glob("plugins/profile/*/*.xplane.pb"))
    return found[-1] if found else None


def operations(
    file: Path, steps: Collection[int], platform: str = "cpu"
) -> dict[int, list[Operation]]:
    """The operations of each device of a platform, by its number, in the steps of these numbers."""
    from jax.profiler import ProfileData  # `doctor` also works where JAX is missing

    data: Any = ProfileData.from_file(str(file))
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
    says_more = event.startswith(_OF_NCCL) or operation.startswith(_CONTAINERS) or not operation
    return event if says_more and "kernel_details" in stats else operation


def device_times(
    devices: Mapping[int, Sequence[Operation]],
    steps: int,
    *,
    communication: Collection[str] = (),
    callbacks: Collection[str] = (),
) -> tuple[DeviceTimes, ...]:
    """The work of each device in this many steps.

    `communication` has the names of collective operations, beside those recognized by kind;
    `callbacks` the names of operations that call Python.
    """
    found = []
    for device, done in sorted(devices.items()):
        own: list[tuple[float, float]] = []
        exchange: list[tuple[float, float]] = []
        python: list[tuple[float, float]] = []
        for one in done:
            if one.name in callbacks:
                python.append((one.begin, one.end))
            elif one.name in communication or one.name.startswith((*KINDS, _OF_NCCL)):
                exchange.append((one.begin, one.end))
            elif not one.name.startswith(_CONTAINERS):
                own.append((one.begin, one.end))
        computing = covered(own) / steps
        with_python = covered([*own, *python]) / steps
        busy = covered([*own, *python, *exchange]) / steps
        found.append(DeviceTimes(device, computing, busy - with_python, with_python - computing))
    return tuple(found)
