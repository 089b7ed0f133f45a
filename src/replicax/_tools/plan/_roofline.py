"""How long a step takes at least: the roofline of a chip. An estimate, with its assumptions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from replicax._tools.plan._wire import wire_bytes

if TYPE_CHECKING:
    from replicax._tools.plan._chips import Chip
    from replicax._tools.plan._collectives import Collective

ASSUMPTIONS = (
    "estimates, not measurements: every part of a chip at the peak that its maker names",
    "a CPU: at the best that it did when the plan was made, divided by its virtual devices",
    "step = the longest of arithmetic, memory and communication started ahead, plus the rest of it",
    "arithmetic and memory: as XLA counts them in the compiled program; a loop counts once",
    "memory: each fused operation reads what it needs from the chip's memory, writes its results",
    "arithmetic at the peak for bfloat16, which TPUs use for float32 multiplications, too",
    "communication: by the arithmetic of rings, along all axes of the slice at once",
    "communication among some of the devices: along one axis",
    "MFU = FLOPs of the program / (step time x peak)",
)


@final
@dataclass(frozen=True)
class Estimate:
    """The times of a step, in seconds.

    Args:
        arithmetic: For its operations.
        memory: For reading and writing the chip's memory.
        communication: For collective operations that the program waits for.
        overlapped: For those during which it computes.
        mfu: Model FLOPs utilization: what part of the chip's peak the step would use.
    """

    arithmetic: float
    memory: float
    communication: float
    overlapped: float
    mfu: float

    @property
    def seconds(self) -> float:
        """The whole step."""
        return step_seconds(max(self.arithmetic, self.memory), self.communication, self.overlapped)

    @property
    def limited_by(self) -> str:
        """What takes longest: `arithmetic`, `memory` or `communication`."""
        times = {
            "arithmetic": self.arithmetic,
            "memory": self.memory,
            "communication": self.communication + self.overlapped,
        }
        return max(times, key=lambda name: times[name])


def estimate(
    chip: Chip,
    axes: tuple[int, ...],
    *,
    flops: float,
    memory_traffic: float,
    collectives: Iterable[Collective],
    devices: int,
) -> Estimate:
    """Estimate how long a step takes.

    Args:
        chip: What a device can do.
        axes: The shape of the slice.
        flops: Operations of one device.
        memory_traffic: Bytes that one device reads and writes.
        collectives: The collective operations.
        devices: How many devices there are.
    """
    arithmetic = flops / chip.flops_per_second
    memory = memory_traffic / chip.memory_bytes_per_second
    waited = overlapped = 0.0
    for one in collectives:
        along = axes if one.group == devices else _one_axis(axes)
        seconds = one.times * wire_bytes(one) / chip.bytes_per_second(along)
        if one.overlapped:
            overlapped += seconds
        else:
            waited += seconds
    whole = step_seconds(max(arithmetic, memory), waited, overlapped)
    return Estimate(arithmetic, memory, waited, overlapped, arithmetic / whole if whole else 0.0)


def step_seconds(computing: float, waited: float, overlapped: float) -> float:
    """What takes longest, and after it what the program waits for."""
    return max(computing, overlapped) + waited


def _one_axis(axes: tuple[int, ...]) -> tuple[int, ...]:
    """The longest axis of a slice."""
    return (max((axis for axis in axes if axis > 1), default=2),)
