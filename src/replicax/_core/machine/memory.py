"""Free memory of devices, sizes as text, and malloc settings that keep freed memory.

glibc allocates each large block as a mapping of its own, and unmaps it at once when it is freed. So
the arrays of each step are new mappings, with a page fault per 4 KB: `keep_memory` keeps it for the
next step. Memory of the compiler is returned, because steps do not need it and the process would
grow.

A thread with its own arena still maps blocks larger than 64 MB, but threads that share an arena
wait for each other: XLA's compiler takes nearly twice as long with one arena. So there is one arena
for each core, and one more.
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
import platform
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from replicax._core.env import cores, malloc_is_set, parts_wanted, processes_here

GIB = 2**30
# A machine that is out of memory kills processes, and others ask for more at any time.
_OF_A_MACHINE = 0.75
# The folder, and the names of its limit, of its use, and of files that are kept in memory.
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


# From malloc.h; _NEVER is the largest number that `mallopt` takes.
_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8
_NEVER = 2**31 - 1
_COMPILED = "/jax/core/compile/backend_compile_duration"
# Seconds. A shorter compilation leaves little memory behind.
_LONG = 0.2


def keep_memory() -> bool:
    """Let the C library keep freed memory in this process from now on, if this part is on.

    It is the part `memory` of the tuning for CPUs. `env.KEEP_MEMORY` has the same settings for
    processes that we start. Returns False, without a change, if the C library is not glibc or the
    user has set malloc options.
    """
    return "memory" in parts_wanted() and _told()


@functools.cache
def _told() -> bool:
    if platform.libc_ver()[0] != "glibc" or malloc_is_set():
        return False
    from jax import monitoring  # not above: sizes in words are needed without JAX, too

    library = ctypes.CDLL(None)

    def give_back(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event == _COMPILED and duration_secs > _LONG:
            library.malloc_trim(0)

    monitoring.register_event_duration_secs_listener(give_back)
    arenas = cores() + 1
    settings = [(_MMAP_MAX, 0), (_TRIM_THRESHOLD, _NEVER), (_ARENA_MAX, arenas)]
    return all(library.mallopt(*setting) for setting in settings)
