"""How long a step takes at least: the roofline of a chip. An estimate, with its assumptions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from replicax._plan._chips import Chip

ASSUMPTIONS = (
    "estimates, not measurements: every part of a chip at the peak that its maker names",
    "step = the longer of arithmetic and memory traffic, plus communication, none of it overlapped",
    "arithmetic and memory traffic as XLA counts them in the compiled program: a loop counts once, "
    "and each fused operation reads its operands from the chip's memory and writes back its result",
    "arithmetic at the peak for bfloat16, which TPUs use for float32 multiplications, too",
    "communication by the arithmetic of rings, along all axes of the slice at once; a collective of "
    "some of the devices runs along one axis",
    "MFU = FLOPs of the program / (step time x peak)",
)


@final
@dataclass(frozen=True)
class Estimate:
    """The times of a step, in seconds.

    Args:
        arithmetic: For its operations.
        memory: For reading and writing the chip's memory.
        communication: For its collective operations.
        mfu: Model FLOPs utilization: what part of the chip's peak the step would use.
    """

    arithmetic: float
    memory: float
    communication: float
    mfu: float

    @property
    def seconds(self) -> float:
        """The whole step."""
        return max(self.arithmetic, self.memory) + self.communication

    @property
    def limited_by(self) -> str:
        """What takes longest: `arithmetic`, `memory` or `communication`."""
        times = {
            "arithmetic": self.arithmetic,
            "memory": self.memory,
            "communication": self.communication,
        }
        return max(times, key=lambda name: times[name])


def estimate(
    chip: Chip,
    axes: tuple[int, ...],
    *,
    flops: float,
    memory_traffic: float,
    wire_by_group: dict[int, int],
    devices: int,
) -> Estimate:
    """Estimate how long a step takes.

    Args:
        chip: What a device can do.
        axes: The shape of the slice.
        flops: Operations of one device.
        memory_traffic: Bytes that one device reads and writes.
        wire_by_group: For each size of a group, how many bytes a device sends in such groups.
        devices: How many devices there are.
    """
    arithmetic = flops / chip.flops_per_second
    memory = memory_traffic / chip.memory_bytes_per_second
    communication = sum(
        sent / chip.bytes_per_second(axes if group == devices else _one_axis(axes))
        for group, sent in wire_by_group.items()
        if sent
    )
    whole = max(arithmetic, memory) + communication
    mfu = arithmetic / whole if whole else 0.0
    return Estimate(arithmetic, memory, communication, mfu)


def _one_axis(axes: tuple[int, ...]) -> tuple[int, ...]:
    return (max((axis for axis in axes if axis > 1), default=2),)
