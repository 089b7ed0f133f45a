"""The switch for the tuning on CPUs: the parts that are on, the same on all workers.

Parts are looked up when a program is compiled, so a change applies to later programs. `memory` is
in `_core/machine/memory.py`, `fusions` and `threads` are in programs.py, `optimizers` is in
adam.py, and each other part is in a file of its own.

Workers whose programs are compiled differently would round differently. So if one worker lacks a
part, because its kernels were not built or the part is switched off, all workers go without it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from contextlib import ExitStack

import jax

from replicax._core.channel import current
from replicax._core.env import (
    CPU_TUNING_PARTS,
    chosen_parts,
    cores,
    enabled_parts,
    processes_here,
)
from replicax._cpu import kernels

PARTS = frozenset(CPU_TUNING_PARTS)
_WITH_KERNELS = frozenset({"attention", "convolutions", "optimizers", "products", "tables"})
_KERNELS = "kernels"  # stands for all kernels, as a part that a worker may lack
# These parts do not change programs, so workers may differ in them.
_NOT_IN_PROGRAMS = frozenset({"memory", "threads"})

_log = logging.getLogger("replicax")
_without: set[str] = set()


def is_on(part: str) -> bool:
    """Whether a part of the tuning is on."""
    return part in parts_on()


def parts_on() -> frozenset[str]:
    """The parts that are on: the parts wanted here, without the parts that other workers lack."""
    return enabled_parts() - _without


def choose(parts: Collection[str]) -> ExitStack:
    """Switch exactly these parts on, in all threads, until the returned stack is closed."""
    undo = ExitStack()
    undo.callback(chosen_parts.__setitem__, slice(None), chosen_parts[:])
    chosen_parts[:] = [frozenset(parts)]
    return undo


def computes_with_one_thread(devices: int) -> bool:
    """Whether each device of this process should use one thread, since others share its cores."""
    # Processes that each run a kernel on all cores wait for each other. Devices of one process
    # share a thread pool and do not.
    several = processes_here() > 1 and max(1, devices) * processes_here() >= cores()
    return several and is_on("threads")


def agree_on_tuning() -> None:
    """Switch off, on all workers, the parts that some worker lacks."""
    if jax.local_devices()[0].platform != "cpu":
        return
    channel = current()
    lacking = lacking_parts(channel.exchange("tuning for CPUs", sorted(own_parts())))
    _without.clear()
    _without.update(lacking, _WITH_KERNELS if _KERNELS in lacking else ())
    if lacking and channel.is_chief:
        parts = ", ".join(
            f"{part} (worker {', '.join(map(str, workers))})" for part, workers in lacking.items()
        )
        _log.warning(
            "All workers compute without parts of the tuning for CPUs that some lack: %s. Steps "
            "may take longer. `replicax doctor` says on each machine why it has no kernels.",
            parts,
        )


def own_parts() -> frozenset[str]:
    """The parts wanted here that change programs, and "kernels" if there are kernels for them."""
    parts = enabled_parts() - _NOT_IN_PROGRAMS
    return parts | {_KERNELS} if parts & _WITH_KERNELS and kernels.are_there() else parts


def lacking_parts(found: Sequence[Collection[str]]) -> dict[str, list[int]]:
    """The parts that only some workers have, each with the workers that lack it."""
    lacking = {
        part: [worker for worker, parts in enumerate(found) if part not in parts]
        for part in sorted(frozenset().union(*found))
    }
    return {part: workers for part, workers in lacking.items() if workers}
