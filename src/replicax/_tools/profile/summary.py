"""The recorder's notes and the profiler's observations, combined."""

from __future__ import annotations

import resource
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import jax

from replicax._core.errors import UsageError
from replicax._core.events import COMPILE, COMPUTE
from replicax._core.topology import device_name
from replicax._tools.profile.result import (
    COLLECTIVES,
    LAUNCH,
    PARTS,
    DeviceUse,
    Profile,
    ProgramFacts,
    facts,
)
from replicax._tools.profile.times import (
    CALLBACKS,
    DeviceTimes,
    Step,
    covered,
    device_times,
    mean,
    operations,
    trace_file,
)
from replicax._tools.text import counted

if TYPE_CHECKING:
    from replicax._tools.profile.recorder import ProgramUse, Recorder


_STEADY = 5.0


def summarized(recorder: Recorder, name: str) -> Profile:
    kind, measured, traced = _steps(recorder, name)
    use = max(recorder.programs.values(), key=lambda one: one.calls, default=None)
    every = _devices(use)
    devices = [device for device in every if device.process_index == jax.process_index()]
    program = _facts(use, len(every))
    parts = dict.fromkeys(PARTS, 0.0) | mean(measured, recorder.spans)
    times = _times(recorder, traced, program, devices)
    if times:
        seen = mean(traced, recorder.spans).get(COMPUTE, 0.0)
        parts |= divided(parts, times, seen)
    compiled = [_count_within(step, recorder.compiled) for step in measured]
    return Profile(
        name,
        kind,
        max(1, len(every)),
        use.rows if use else None,
        len(measured),
        sum(step.seconds for step in measured) / len(measured),
        parts,
        bool(times),
        sum(compiled),
        sum(map(bool, compiled)),
        _compiling_before(measured[0], recorder),
        _uses(devices, times, traced),
        program,
        _host_peak(),
        str(recorder.folder) if traced else None,
        is_steady([step.seconds for step in measured]),
    )


def is_steady(seconds: Sequence[float]) -> bool:
    """Whether the times of steps, but for a tenth at both ends, are within a factor of 5."""
    ordered, ends = sorted(seconds), len(seconds) // 10
    return ordered[-1 - ends] <= _STEADY * ordered[ends]


def divided(parts: dict[str, float], times: Sequence[DeviceTimes], seen: float) -> dict[str, float]:
    """The time between a program's start and end, divided by the work of the slowest device.

    The others wait for it in their collective operations; it waits least. `parts` has all of that
    time as `compute`; `seen` is how long the program of a traced step took.
    """
    slowest = max(times, key=lambda one: one.own + one.callbacks)
    whole = parts[COMPUTE]
    scale = whole / max(seen, slowest.busy) if max(seen, slowest.busy) else 0.0
    return {
        COMPUTE: slowest.own * scale,
        COLLECTIVES: slowest.collectives * scale,
        CALLBACKS: parts[CALLBACKS] + slowest.callbacks * scale,
        LAUNCH: max(0.0, whole - slowest.busy * scale),  # rounding may leave less than nothing
    }


def _steps(recorder: Recorder, name: str) -> tuple[str, list[Step], list[Step]]:
    """The steps of the most frequent kind: the kind, those measured, and those traced.

    A step followed by something else, such as a validation, is left out, because it would include
    the start of that.
    """
    steps = [step for step in recorder.steps if step.number >= recorder.plan.warm_up]
    kind = Counter(step.kind for step in steps).most_common(1)[0][0] if steps else ""
    whole = [
        step
        for step, after in zip_longest(steps, steps[1:])
        if step.kind == kind and (after is None or after.kind == kind)
    ]
    measured = [step for step in whole if not step.is_traced]
    if not measured:
        if not recorder.begun:
            fix = "Check its arguments, or pass `--replicas`"
        else:
            fix = f"The first {recorder.plan.warm_up} warm up: train longer, or warm up for fewer"
        raise UsageError(
            f"Cannot profile {name}: it made {counted(recorder.begun, 'training step')} under a "
            f"strategy of Replicax. {fix}. See docs/monitoring.md."
        )
    # Once in a run, the end of the first epoch compiles a few programs for its output.
    compiling = [step for step in measured if _count_within(step, recorder.compiled)]
    if len(compiling) == 1 < len(measured):
        measured.remove(compiling[0])
    traced = [step for step in whole if step.is_traced]
    # A program's first run takes longer, and is often another program.
    usual = [step for step in traced if not _count_within(step, recorder.compiled)]
    return kind, measured, usual or traced


def _devices(use: ProgramUse | None) -> list[Any]:
    found: set[Any] = set()
    for leaf in jax.tree.leaves(use.args) if use else ():
        found |= leaf.sharding.device_set if leaf.sharding is not None else set()
    return sorted(found, key=lambda device: device.id)


def _facts(use: ProgramUse | None, devices: int) -> ProgramFacts | None:
    if use is None or not hasattr(use.program, "lower"):
        return None
    return facts(use.program.lower(*use.args).compile(), max(1, devices))


def _times(
    recorder: Recorder, traced: Sequence[Step], program: ProgramFacts | None, devices: Sequence[Any]
) -> tuple[DeviceTimes, ...]:
    file = trace_file(recorder.folder) if traced and recorder.folder is not None else None
    if file is None:
        return ()
    ours = set(map(_number, devices))
    steps = {step.number for step in traced}
    # A central storage has the CPU beside its GPU, with the same number.
    platform = next((one.platform for one in devices if one.platform != "cpu"), "cpu")
    found = {id: done for id, done in operations(file, steps, platform).items() if id in ours}
    if program is None:
        return device_times(found, len(traced))
    return device_times(
        found,
        len(traced),
        communication=program.communication,
        callbacks=program.callbacks,
    )


def _count_within(step: Step, times: Sequence[float]) -> int:
    return sum(step.begin.wall <= one < step.end.wall for one in times)


def _number(device: Any) -> int:
    """A trace's number of a device: counted over all workers for a CPU, else within its host."""
    return device.id if device.platform == "cpu" else device.local_hardware_id


def _uses(
    devices: Sequence[Any], times: Sequence[DeviceTimes], traced: Sequence[Step]
) -> tuple[DeviceUse, ...]:
    step = sum(one.seconds for one in traced) / len(traced) if traced else 0.0
    by_number = {_number(device): device for device in devices}
    return tuple(
        DeviceUse(
            device_name(by_number[one.device]),
            one.own + one.callbacks,
            one.collectives,
            min(1.0, one.busy / step) if step else 0.0,
            (by_number[one.device].memory_stats() or {}).get("peak_bytes_in_use"),
        )
        for one in times
    )


def _compiling_before(first: Step, recorder: Recorder) -> float:
    return covered(
        (span.begin.wall, span.end.wall)
        for span in recorder.spans
        if span.part == COMPILE and span.end.wall <= first.begin.wall
    )


def _host_peak() -> int:
    """The peak memory of the process; Linux counts in kilobytes, macOS in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
