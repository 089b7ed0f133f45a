"""The memory of devices: how much is free, and sizes in words."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from replicax._core.env import processes_here

GIB = 2**30
# A machine that is out of memory kills processes, and others ask for more at any time.
_OF_A_MACHINE = 0.75
# Folder, and the names of its limit, of what is used, and of files that are kept in memory.
_CGROUPS = (
    ("/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    (
        "/sys/fs/cgroup/memory",
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "total_inactive_file",
    ),
)
_AVAILABLE = re.compile(r"^MemAvailable: +(\d+) kB", re.MULTILINE)


def size(count: float) -> str:
    """A number of bytes in words: `1.5 GiB`, `2.0 MiB`, `12 B`."""
    if count < 1024:
        return f"{count:.0f} B"
    power = min(int(math.log(count, 1024)), 4)
    return f"{count / 1024**power:.1f} {('KiB', 'MiB', 'GiB', 'TiB')[power - 1]}"


def free_memory(devices: Collection[Any]) -> int | None:
    """The bytes that a program may still take on each of these devices; None if nobody knows.

    For accelerators JAX says it. The devices of a CPU, and the processes that `replicax run` has
    started on it, share three quarters of what the machine has.
    """
    found = [_free(device) for device in devices]
    known = [free for free in found if free is not None]
    if known:
        return min(known)
    if any(device.platform != "cpu" for device in devices):
        return None
    available = _available()
    if available is None:
        return None
    return int(_OF_A_MACHINE * available) // (len(devices) * processes_here())


def machine_memory() -> int | None:
    """The bytes that this machine has, free or not; None if it is not a Unix, or does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def _free(device: Any) -> int | None:
    found = device.memory_stats() or {}
    if "bytes_limit" not in found:
        return None
    return max(0, found["bytes_limit"] - found.get("bytes_in_use", 0))


def _available() -> int | None:
    """The bytes that this machine, or this container, can give to programs."""
    of_container = _of_container()
    try:
        found = _AVAILABLE.search(Path("/proc/meminfo").read_text())
        available = int(found[1]) * 1024 if found else None
    except OSError:
        available = None
    if available is None:  # not a Linux
        available = machine_memory()
    if available is None or of_container is None:
        return available
    return min(available, of_container)


def _of_container() -> int | None:
    for folder, limit, used, cached in _CGROUPS:
        most = _number(Path(folder, limit))
        if most is not None:
            try:  # files that were read are kept, and make room when it is needed
                kept = re.search(rf"^{cached} (\d+)", Path(folder, "memory.stat").read_text(), re.M)
            except OSError:
                kept = None
            taken = (_number(Path(folder, used)) or 0) - (int(kept[1]) if kept else 0)
            return max(0, most - max(0, taken))
    return None


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):  # no such limit, or "max"
        return None
