"""The kernel: kernel.c, compiled for this machine's cores when the first step is traced.

Without a compiler nothing is said, and XLA computes the formula.
"""

from __future__ import annotations

import functools
from pathlib import Path

from replicax._core.handlers import building

TARGET = "rx_adam"
_SOURCE = Path(__file__).with_name("kernel.c")


# Not contracted: the same numbers on cores of every kind, and whatever compiles it.
_FLAGS = ("-ffp-contract=off",)


def begin() -> None:
    """Begin to compile the kernel."""
    building.begin("adam", _SOURCE, *_FLAGS)


@functools.cache
def is_there() -> bool:
    """Whether there is a kernel, which XLA then knows as `TARGET`."""
    otherwise = "Adam is without its kernel"
    return building.is_known(otherwise, "adam", _SOURCE, *_FLAGS, targets=[TARGET])
