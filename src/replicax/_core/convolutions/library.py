"""The kernel: kernel.c, compiled for this machine's cores when the first convolution is compiled.

Without a compiler nothing is said, and convolutions stay with XLA.
"""

from __future__ import annotations

import functools
from pathlib import Path

from replicax._core.handlers import building

TARGET = "rx_convolution"
_SOURCE = Path(__file__).with_name("kernel.c")


@functools.cache
def is_there() -> bool:
    """Whether there is a kernel, which XLA then knows as `TARGET`."""
    otherwise = "Convolutions are without their kernel"
    return building.is_known(otherwise, "convolution", _SOURCE, targets=[TARGET])
