"""What chips can do, from their makers' pages: memory, peak speed, links. Numbers only.

Where a chip is two devices to JAX (TPU v2 and v3), the numbers are those of a device: half a chip.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

GIB = 2**30


@final
@dataclass(frozen=True)
class Chip:
    """What one device of a kind can do at its best.

    Args:
        name: Such as `TPU v5e`.
        memory_bytes: What a program may use of its memory; None if it has none of its own.
        flops_per_second: Its peak, for multiplications of bfloat16; of a CPU, of float32.
        memory_bytes_per_second: How fast it reads its memory.
        link_bytes_per_second: How much one link to a neighbour carries in one direction.
        ring_from: From this length on, an axis of the slice is closed to a ring. Shorter ones are
            lines. None if the devices are joined by a switch, which has one link to each.
    """

    name: str
    memory_bytes: int | None
    flops_per_second: float
    memory_bytes_per_second: float
    link_bytes_per_second: float
    ring_from: int | None

    def bytes_per_second(self, axes: tuple[int, ...]) -> float:
        """How much a device sends per second when all of a slice reduce or gather together.

        A collective runs along all axes of the slice at once; a ring sends both ways, a line is as
        fast as the one link of its end.

        Args:
            axes: The shape of the slice in chips; for a switch, anything.
        """
        if self.ring_from is None:
            return self.link_bytes_per_second
        long = [axis for axis in axes if axis > 1] or [2]  # the two devices of one chip
        rings = _are_rings(long, self.ring_from)
        return self.link_bytes_per_second * sum(2 if ring else 1 for ring in rings)


def _are_rings(axes: list[int], ring_from: int) -> list[bool]:
    """Two axes close one by one; three only together, as cubes of optically switched chips."""
    if ring_from == _CUBE:
        return [len(axes) == 3 and all(axis % _CUBE == 0 for axis in axes)] * len(axes)
    return [axis >= ring_from for axis in axes]


_CUBE = 4
_V5E_POD, _V2_POD, _V3_POD = 16, 16, 32

# Memory is what the compiler lets a program use, which libtpu 0.0.42 says when one is too large.
# v2, v3: Jouppi et al., "A domain-specific supercomputer for training deep neural networks",
#   CACM 2020, table 3: a chip has 46 and 123 TFLOP/s, 700 and 900 GB/s, 4 links of 496 and 656
#   Gbit/s.
# v4: Jouppi et al., "TPU v4", ISCA 2023, table 4: 275 TFLOP/s, 1200 GB/s, 6 links of 50 GB/s.
# v5e, v5p, v6e: docs.cloud.google.com/tpu/docs/v5e, /v5p, /v6e: 197, 459 and 918 TFLOP/s; 819, 2765
#   and 1638 GB/s; 400 GB/s of 4 links, 1200 of 6 and 800 of 4, both directions together.
TPUS = {
    "v2": Chip("TPU v2", round(7.48 * GIB), 23e12, 350e9, 62e9, _V2_POD),
    "v3": Chip("TPU v3", round(15.48 * GIB), 61.5e12, 450e9, 82e9, _V3_POD),
    "v4": Chip("TPU v4", round(30.75 * GIB), 275e12, 1200e9, 50e9, _CUBE),
    "v5e": Chip("TPU v5e", round(15.75 * GIB), 197e12, 819e9, 50e9, _V5E_POD),
    "v5p": Chip("TPU v5p", round(95.74 * GIB), 459e12, 2765e9, 100e9, _CUBE),
    "v6e": Chip("TPU v6e", round(31.25 * GIB), 918e12, 1638e9, 100e9, _V5E_POD),
}

# A100: nvidia.com/data-center/a100, 80 GB SXM: 312 TFLOP/s, 2039 GB/s, NVLink 600 GB/s both ways.
# H100: nvidia.com/data-center/h100, SXM: 989 TFLOP/s dense, 3350 GB/s, NVLink 900 GB/s both ways.
_GPUS = (
    ("A100", Chip("A100 80GB", 80 * GIB, 312e12, 2039e9, 300e9, None)),
    ("H100", Chip("H100 SXM", 80 * GIB, 989e12, 3350e9, 450e9, None)),
    ("H200", Chip("H200 SXM", 141 * 10**9, 989e12, 4800e9, 450e9, None)),
)


def gpu(kind: str) -> Chip | None:
    """The chip that JAX's name of a GPU means, or None if it is not in the catalogue."""
    return next((chip for word, chip in _GPUS if word in kind), None)


def size(count: float) -> str:
    """A number of bytes in words: `1.5 GiB`, `2.0 MiB`, `12 B`."""
    if count < 1024:
        return f"{count:.0f} B"
    power = min(int(math.log(count, 1024)), 4)
    return f"{count / 1024**power:.1f} {('KiB', 'MiB', 'GiB', 'TiB')[power - 1]}"
