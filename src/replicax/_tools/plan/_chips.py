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
class Network:
    """How many chips are joined.

    Args:
        dimensions: Of a slice: 2 or 3. 0 if a switch joins the chips.
        most_chips: How many one slice has at most; None if there is no end.
        hop_seconds: How long a message takes to the next chip, beside its bytes.
        between_bytes_per_second: What a device sends to those of other slices or hosts.
        between_seconds: How long a message takes to them.
    """

    dimensions: int = 0
    most_chips: int | None = None
    hop_seconds: float = 0.0
    between_bytes_per_second: float = 0.0
    between_seconds: float = 0.0


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
        network: How more of them are joined.
    """

    name: str
    memory_bytes: int | None
    flops_per_second: float
    memory_bytes_per_second: float
    link_bytes_per_second: float
    ring_from: int | None
    network: Network = Network()

    def bytes_per_second(self, axes: tuple[int, ...]) -> float:
        """How much a device sends per second when all of a slice reduce or gather together.

        A collective runs along all axes of the slice at once; a ring sends both ways, a line is as
        fast as the one link of its end.

        Args:
            axes: The shape of the slice in chips; for a switch, anything.
        """
        if self.ring_from is None:
            return self.link_bytes_per_second
        rings = _are_rings(_long(axes), self.ring_from)
        return self.link_bytes_per_second * sum(2 if ring else 1 for ring in rings)

    def hops(self, axes: tuple[int, ...]) -> int:
        """How many messages one after the other reduce, or gather, along all axes of a slice.

        A ring sends both ways and needs half as many; chips at a switch halve and double.
        """
        if self.ring_from is None:
            return math.ceil(math.log2(math.prod(axes)))
        long = _long(axes)
        rings = _are_rings(long, self.ring_from)
        return sum(axis // 2 if ring else axis - 1 for axis, ring in zip(long, rings, strict=True))


def _long(axes: tuple[int, ...]) -> list[int]:
    return [axis for axis in axes if axis > 1] or [2]  # the two devices of one chip


def _are_rings(axes: list[int], ring_from: int) -> list[bool]:
    """Two axes close one by one; three only together, as cubes of optically switched chips."""
    if ring_from == _CUBE:
        return [len(axes) == 3 and all(axis % _CUBE == 0 for axis in axes)] * len(axes)
    return [axis >= ring_from for axis in axes]


_CUBE = 4
_V5E_POD, _V2_POD, _V3_POD = 16, 16, 32
# Between slices: "How to scale your model", Austin et al. 2025, jax-ml.github.io/scaling-book,
# parts on TPUs, sharded matrices and GPUs: a hop takes about 1 µs; a chip has 6.25 GB/s of its
# host's network, of v5e 3.125, of v6e 12.5; a host with 8 H100 has 400 GB/s.
# Of v2 and v3, whose chips are two devices, and of the A100: as much as of v4, and half an H100.
# Nobody says how long messages between hosts take: 10 µs is a guess, also within a switch 3 µs.
_HOP, _AT_SWITCH, _BETWEEN = 1e-6, 3e-6, 10e-6

# Memory is what the compiler lets a program use, which libtpu 0.0.42 says when one is too large.
# v2, v3: Jouppi et al., "A domain-specific supercomputer for training deep neural networks",
#   CACM 2020, table 3: a chip has 46 and 123 TFLOP/s, 700 and 900 GB/s, 4 links of 496 and 656
#   Gbit/s.
# v4: Jouppi et al., "TPU v4", ISCA 2023, table 4: 275 TFLOP/s, 1200 GB/s, 6 links of 50 GB/s.
# v5e, v5p, v6e: docs.cloud.google.com/tpu/docs/v5e, /v5p, /v6e: 197, 459 and 918 TFLOP/s; 819, 2765
#   and 1638 GB/s; 400 GB/s of 4 links, 1200 of 6 and 800 of 4, both directions together.


def _slices(dimensions: int, most_chips: int, between: float) -> Network:
    return Network(dimensions, most_chips, _HOP, between, _BETWEEN)


def _hosts(between: float) -> Network:
    return Network(0, 8, _AT_SWITCH, between, _BETWEEN)


TPUS = {
    "v2": Chip("TPU v2", round(7.48 * GIB), 23e12, 350e9, 62e9, _V2_POD, _slices(2, 256, 3.125e9)),
    "v3": Chip(
        "TPU v3", round(15.48 * GIB), 61.5e12, 450e9, 82e9, _V3_POD, _slices(2, 1024, 3.125e9)
    ),
    "v4": Chip("TPU v4", round(30.75 * GIB), 275e12, 1200e9, 50e9, _CUBE, _slices(3, 4096, 6.25e9)),
    "v5e": Chip(
        "TPU v5e", round(15.75 * GIB), 197e12, 819e9, 50e9, _V5E_POD, _slices(2, 256, 3.125e9)
    ),
    "v5p": Chip(
        "TPU v5p", round(95.74 * GIB), 459e12, 2765e9, 100e9, _CUBE, _slices(3, 8960, 6.25e9)
    ),
    "v6e": Chip(
        "TPU v6e", round(31.25 * GIB), 918e12, 1638e9, 100e9, _V5E_POD, _slices(2, 256, 12.5e9)
    ),
}

# A100: nvidia.com/data-center/a100, 80 GB SXM: 312 TFLOP/s, 2039 GB/s, NVLink 600 GB/s both ways.
# H100: nvidia.com/data-center/h100, SXM: 989 TFLOP/s dense, 3350 GB/s, NVLink 900 GB/s both ways.
_GPUS = (
    ("A100", Chip("A100 80GB", 80 * GIB, 312e12, 2039e9, 300e9, None, _hosts(25e9))),
    ("H100", Chip("H100 SXM", 80 * GIB, 989e12, 3350e9, 450e9, None, _hosts(50e9))),
    ("H200", Chip("H200 SXM", 141 * 10**9, 989e12, 4800e9, 450e9, None, _hosts(50e9))),
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
