"""The switch for what makes programs on CPUs faster: which parts of it are on, on all workers.

The parts ask here when a program is compiled, so a change is for later programs. `memory` is in
memory.py, `fusions` and `threads` are in options.py, and each other part is in a file of its own:
`optimizers` in adam.py.

Workers whose programs are compiled differently would round differently. So if one worker lacks a
part, because its kernels were not built or the part is switched off, all of them go without it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

import jax

from replicax._control import current
from replicax._core.env import CPU_TUNING_PARTS, cores, cpu_tuning_parts, processes_here
from replicax._cpu import kernels

_KERNELS = ("attention", "convolutions", "optimizers", "products", "tables")
# Where memory comes from and how many threads compute changes no program.
_PARTS = tuple(part for part in CPU_TUNING_PARTS if part not in ("memory", "threads"))
_ON, _OFF, _WITHOUT = "on", "off", "without its kernel"

_log = logging.getLogger("replicax")
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


def agree_on_tuning() -> None:
    """Switch off, on all workers, the parts of the tuning that they do not have alike."""
    if jax.local_devices()[0].platform != "cpu":
        return
    channel = current()
    found = channel.exchange("tuning for CPUs", tuning())
    lacking = lacking_parts(found)
    go_without(lacking)
    if lacking and channel.is_chief:
        said = ", ".join(
            f"{part} ({', '.join(f'worker {worker}: {why}' for worker, why in workers.items())})"
            for part, workers in lacking.items()
        )
        _log.warning(
            "All workers compute without parts of the tuning for CPUs that some lack: %s. Steps "
            "may take longer. `replicax doctor` says on each machine why it has no kernels.",
            said,
        )


def tuning() -> dict[str, str]:
    """What this worker has of each part that changes programs."""
    on = parts_on()
    return {part: _state(part) if part in on else _OFF for part in _PARTS}


def lacking_parts(found: Sequence[Mapping[str, str]]) -> dict[str, dict[int, str]]:
    """The parts that workers do not have alike, each with those that lack it, and why."""
    differing = [part for part in _PARTS if len({one.get(part) for one in found}) > 1]
    return {
        part: {i: one.get(part, _OFF) for i, one in enumerate(found) if one.get(part) != _ON}
        for part in differing
    }


def _state(part: str) -> str:
    return _ON if part not in _KERNELS or kernels.are_there() else _WITHOUT
