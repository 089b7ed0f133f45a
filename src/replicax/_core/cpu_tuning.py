"""The switch for what makes programs on CPUs faster: which parts of it are on.

The parts are elsewhere: options (fusions, threads) in compiling.py, attention in attention_kernel/
and _keras/attention.py, convolutions in convolutions/, optimizers in adam_kernel/, pooling in
pooling.py, memory in host_memory.py, products in products.py and row_products/, tables in
table_kernel/. They ask here when a program is compiled, so a change is for later programs.
"""

from __future__ import annotations

from collections.abc import Iterable

from replicax._core.env import cores, cpu_tuning_parts, processes_here

_chosen: list[frozenset[str]] = []
_without: set[str] = set()


def is_on(part: str) -> bool:
    """Whether a part of the tuning is on; its names are `env.CPU_TUNING_PARTS`."""
    return part in parts_on()


def parts_on() -> frozenset[str]:
    """The parts that are on: what the program chose, or else the environment."""
    return (_chosen[0] if _chosen else cpu_tuning_parts()) - _without


def choose_parts(parts: frozenset[str]) -> None:
    """Let these parts be on and no others, in all threads."""
    _chosen[:] = [parts]


def go_without(parts: Iterable[str]) -> None:
    """Leave these parts off, whatever is chosen: other workers of the cluster lack them."""
    _without.clear()
    _without.update(parts)


def computes_with_one_thread(devices: int) -> bool:
    """Whether each device of this process should use one thread: others share its cores.

    Args:
        devices: How many it has.
    """
    # Several processes that each put a kernel on all cores wait for each other. Devices of one do
    # not: they have one pool of threads.
    several = processes_here() > 1 and max(1, devices) * processes_here() >= cores()
    return several and is_on("threads")
