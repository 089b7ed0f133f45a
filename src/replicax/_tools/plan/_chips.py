"""The memory of chips, and sizes in words."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

GIB = 2**30


@final
@dataclass(frozen=True)
class Chip:
    """A kind of device, such as `TPU v5e`; `memory_bytes` is what a program may use."""

    name: str
    memory_bytes: int


# The memory that the compiler lets a program use, as libtpu 0.0.42 says for one too large. A chip
# of v2 and v3 is two devices to JAX: the figure is that of half a chip.
TPUS = {
    "v2": Chip("TPU v2", round(7.48 * GIB)),
    "v3": Chip("TPU v3", round(15.48 * GIB)),
    "v4": Chip("TPU v4", round(30.75 * GIB)),
    "v5e": Chip("TPU v5e", round(15.75 * GIB)),
    "v5p": Chip("TPU v5p", round(95.74 * GIB)),
    "v6e": Chip("TPU v6e", round(31.25 * GIB)),
}

_GPUS = (
    ("A100", Chip("A100 80GB", 80 * GIB)),
    ("H100", Chip("H100 SXM", 80 * GIB)),
    ("H200", Chip("H200 SXM", 141 * 10**9)),
)


def gpu(kind: str) -> Chip | None:
    """The chip for JAX's name of a GPU, or None if it is not in the catalogue."""
    return next((chip for word, chip in _GPUS if word in kind), None)


def size(count: float) -> str:
    """A number of bytes in words: `1.5 GiB`, `2.0 MiB`, `12 B`."""
    if count < 1024:
        return f"{count:.0f} B"
    power = min(int(math.log(count, 1024)), 4)
    return f"{count / 1024**power:.1f} {('KiB', 'MiB', 'GiB', 'TiB')[power - 1]}"
