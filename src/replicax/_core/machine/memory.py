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

from replicax._core.env import cores, enabled_parts, malloc_is_set, processes_here

GIB = 2**30
# A machine that is out of memory kills processes, and others ask for more at any time.
_OF_A_MACHINE = 0.75
# Limit and usage of a container, and the name of the cached files in memory.stat, beside them.
_V1 = "/sys/fs/cgroup/memory/memory"
_CGROUPS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "inactive_file"),
    (f"{_V1}.limit_in_bytes", f"{_V1}.usage_in_bytes", "total_inactive_file"),
)
_AVAILABLE = re.compile(r"^MemAvailable: +(\d+) kB", re.MULTILINE)


def size(count: float) -> str:
    """A number of bytes in words: `1.5 GiB`, `2.0 MiB`, `12 B`."""
    if count < 1024:
        return f"{count:.0f} B"
    power = min(int(math.log(count, 1024)), 4)
    return f"{count / 1024**power:.1f} {('KiB', 'MiB', 'GiB', 'TiB')[power - 1]}"


def free_memory(devices: Collection[Any]) -> int | None:
    """The free bytes on each of these devices; None if unknown.

    JAX reports them for accelerators. The devices of a CPU, and the processes that `replicax run`
    has started on it, share three quarters of the available memory.
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
    """The bytes of this machine's memory, free or not; None if unknown, as on Windows."""
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
    """The available bytes of this machine, or of this container."""
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
    for limit, usage, cached in _CGROUPS:
        most = _number(Path(limit))
        if most is not None:
            try:  # cached files are dropped when memory is needed
                stat = Path(limit).with_name("memory.stat").read_text()
                cache = re.search(rf"^{cached} (\d+)", stat, re.MULTILINE)
            except OSError:
                cache = None
            used = (_number(Path(usage)) or 0) - (int(cache[1]) if cache else 0)
            return max(0, most - max(0, used))
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
    """Let the C library keep freed memory, if the part `memory` of the tuning for CPUs is on.

    `env.KEEP_MEMORY` has the same settings for child processes. Returns False, without a change, if
    the C library is not glibc or the user has set malloc options.
    """
    return "memory" in enabled_parts() and _set_malloc()


@functools.cache
def _set_malloc() -> bool:
    if platform.libc_ver()[0] != "glibc" or malloc_is_set():
        return False
    from jax import monitoring  # `size` is used without JAX, too

    library = ctypes.CDLL(None)

    def trim(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event == _COMPILED and duration_secs > _LONG:
            library.malloc_trim(0)

    monitoring.register_event_duration_secs_listener(trim)
    settings = [(_MMAP_MAX, 0), (_TRIM_THRESHOLD, _NEVER), (_ARENA_MAX, cores() + 1)]
    return all(library.mallopt(*setting) for setting in settings)
