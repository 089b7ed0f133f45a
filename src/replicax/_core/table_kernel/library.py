"""The kernel: kernel.c, compiled for this machine's cores when the first table is looked up in.

Without a compiler nothing is said, and XLA computes all of it.
"""

from __future__ import annotations

import functools
from pathlib import Path

from replicax._core.handlers.building import is_known

LOOK_UP, ADD, ADD_SUMS, FIRSTS = TARGETS = (
    "rx_look_up",
    "rx_add_rows",
    "rx_add_sums_of_rows",
    "rx_first_rows",
)
_SOURCE = Path(__file__).with_name("kernel.c")


@functools.cache
def is_there() -> bool:
    """Whether there is a kernel, which XLA then knows as `TARGETS`."""
    # Not contracted: a product and a sum are rounded one by one, as XLA's are.
    exact = "-ffp-contract=off"
    return is_known("Tables are without their kernel", "tables", _SOURCE, exact, targets=TARGETS)
