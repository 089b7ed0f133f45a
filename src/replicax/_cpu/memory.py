"""Host memory that the process keeps for the next step, instead of returning it to the system.

glibc allocates each large block as a mapping of its own, and unmaps it at once when it is freed. So
the arrays of each step are new mappings, with a page fault per 4 KB. Memory of the compiler is
returned, because steps do not need it and the process would grow.

A thread with its own arena still maps blocks larger than 64 MB, but threads that share an arena
wait for each other: XLA's compiler takes nearly twice as long with one arena. So there is one arena
for each core, and one more.
"""

from __future__ import annotations

import ctypes
import functools
import platform

from jax import monitoring

from replicax._core.env import cores, malloc_is_set
from replicax._cpu.tuning import is_on

# From malloc.h; _NEVER is the largest number that `mallopt` takes.
_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8
_NEVER = 2**31 - 1
_COMPILED = "/jax/core/compile/backend_compile_duration"
# Seconds. A shorter compilation leaves little memory behind.
_LONG = 0.2


def keep_memory() -> bool:
    """Let the C library keep freed memory in this process from now on, if this part is on.

    `env.KEEP_MEMORY` has the same settings for processes that we start. Returns False, without a
    change, if the C library is not glibc or the user has set malloc options.
    """
    return is_on("memory") and _told()


@functools.cache
def _told() -> bool:
    if platform.libc_ver()[0] != "glibc" or malloc_is_set():
        return False
    library = ctypes.CDLL(None)

    def give_back(event: str, duration_secs: float, **kwargs: str | int) -> None:
        if event == _COMPILED and duration_secs > _LONG:
            library.malloc_trim(0)

    monitoring.register_event_duration_secs_listener(give_back)
    arenas = cores() + 1
    settings = [(_MMAP_MAX, 0), (_TRIM_THRESHOLD, _NEVER), (_ARENA_MAX, arenas)]
    return all(library.mallopt(*setting) for setting in settings)
