"""The kernel: kernel.c, compiled for this machine's cores when the first step is traced.

Without a compiler nothing is said, and XLA computes the formula.
"""

from __future__ import annotations

import functools
from pathlib import Path

from replicax._core.handlers.building import is_known

TARGET = "rx_adam"
_SOURCE = Path(__file__).with_name("kernel.c")


@functools.cache
def is_there() -> bool:
    """Whether there is a kernel, which XLA then knows as `TARGET`."""
    # Not contracted: the same numbers on cores of every kind, and whatever compiles it.
    exact = "-ffp-contract=off"
    return is_known("Adam is without its kernel", "adam", _SOURCE, exact, targets=[TARGET])
