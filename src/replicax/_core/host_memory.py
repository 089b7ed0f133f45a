"""Memory of the host that is kept for the next step, instead of given back and asked for again.

The C library of GNU hands out large blocks as mappings of their own and gives them back at once.
Each step's arrays are new mappings then, at the price of a page fault per 4 KB.
"""

from __future__ import annotations

import ctypes
import functools
import platform

# From malloc.h, and the largest number that the call takes.
_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8
_NEVER = 2**31 - 1


@functools.cache
def keep_memory() -> bool:
    """Let the C library keep what is freed, in this process, from now on.

    For processes that are started, `env.KEEP_MEMORY` says the same, and from the beginning.

    Returns:
        Whether it can be told so; else nothing changes.
    """
    if platform.libc_ver()[0] != "glibc":
        return False
    tell = ctypes.CDLL(None).mallopt
    return all([tell(_MMAP_MAX, 0), tell(_TRIM_THRESHOLD, _NEVER), tell(_ARENA_MAX, 1)])
