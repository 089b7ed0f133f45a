"""The kernel: kernel.c, compiled for this machine's cores when the first table is looked up in.

Without a compiler nothing is said, and XLA computes all of it.
"""

from __future__ import annotations

import functools
from pathlib import Path

from replicax._core.handlers import building

LOOK_UP, ADD, ADD_SUMS, FIRSTS = TARGETS = (
    "rx_look_up",
    "rx_add_rows",
    "rx_add_sums_of_rows",
    "rx_first_rows",
)
# Of which it finds the first of each index: it numbers twice as many places in 32 bits.
MOST_ROWS = 1 << 29

_SOURCE = Path(__file__).with_name("kernel.c")

# Not contracted: a product and a sum are rounded one by one, as XLA's are.
_FLAGS = ("-ffp-contract=off",)


def begin() -> None:
    """Begin to compile the kernel."""
    building.begin("tables", _SOURCE, *_FLAGS)


@functools.cache
def is_there() -> bool:
    """Whether there is a kernel, which XLA then knows as `TARGETS`."""
    otherwise = "Tables are without their kernel"
    return building.is_known(otherwise, "tables", _SOURCE, *_FLAGS, targets=TARGETS)
