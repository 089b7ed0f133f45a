"""Memory of the host that is kept for the next step, instead of given back and asked for again.

The C library of GNU hands out large blocks as mappings of their own and gives them back at once.
Each step's arrays are new mappings then, at the price of a page fault per 4 KB. What a compiler
needed is no step's: it goes back, so that the process does not grow by it.

A thread with an arena of its own still maps what is larger than 64 MB, but threads that share one
wait for each other: XLA's compiler takes nearly twice as long with one for all. So there are as
many as threads that compute at once, and one.
"""

from __future__ import annotations

import ctypes
import functools
import platform

from jax import monitoring

from replicax._core.env import cores, malloc_is_set
from replicax._cpu.tuning import is_on

# From malloc.h, and the largest number that the call takes.
_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8
_NEVER = 2**31 - 1
_COMPILED = "/jax/core/compile/backend_compile_duration"
# Seconds. Programs that are compiled in less leave little behind.
_LONG = 0.2


def keep_memory() -> bool:
    """Let the C library keep what is freed, in this process, from now on, if this part is on.

    For processes that are started, `env.KEEP_MEMORY` says the same, and from the beginning. Nothing
    changes, and False is returned, if it cannot be, or the user has told it something.
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
