"""The kernel: kernel.c, compiled for this machine's cores when the first step is traced.

Without a compiler nothing is said, and XLA computes the formula.
"""

from __future__ import annotations

import functools
import logging
import platform
from pathlib import Path

from replicax._core.handlers.building import NoHandlerError, compiler, load

TARGET = "rx_adam"
_SOURCE = Path(__file__).with_name("kernel.c")
# Not contracted: the same numbers on cores of every kind, and whatever compiles it.
_FLAGS = ("-march=native", "-fno-math-errno", "-ffp-contract=off")

_log = logging.getLogger("replicax")


@functools.cache
def is_there() -> bool:
    """Whether there is a kernel, which XLA then knows as `TARGET`."""
    if compiler() is None or platform.system() != "Linux":
        return False
    try:
        load("adam", _SOURCE, *_FLAGS, targets=[TARGET])
    except NoHandlerError as why:
        _log.info("Adam is without its kernel: %s", why)
        return False
    return True
