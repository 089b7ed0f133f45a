"""The memory of chips."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

from replicax._core.machine.memory import GIB


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


def gpu(device: Any) -> Chip | None:
    """A GPU of this machine, with the memory that JAX may use of it; None if JAX does not say."""
    limit = (device.memory_stats() or {}).get("bytes_limit")
    return Chip(device.device_kind, limit) if limit else None
