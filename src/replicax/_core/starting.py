"""What is decided before the first strategy starts JAX: once in a process, never by an import."""

from __future__ import annotations

import functools

from replicax._core import compilation_cache
from replicax._core.env import leave_idle_libtpu
from replicax._core.host_devices import count_accelerators
from replicax._cpu.memory import keep_memory
from replicax.cluster_resolver._tpu_slice import chips_on_bus


@functools.cache
def begin() -> None:
    """Let JAX start sooner: without a library for TPUs that are not here, with programs kept."""
    leave_idle_libtpu(chips_on_bus())
    compilation_cache.begin()
    _keep_memory_of_cpus()


def _keep_memory_of_cpus() -> None:
    """Let the C library keep memory for the next step, if programs run on CPUs alone.

    Before JAX starts: its threads get heaps of their own, which the C library gives back whatever
    it is told later. A step of a small CNN has 27,000 page faults then, else none.
    """
    if not any(map(count_accelerators, ("GPU", "TPU"))):
        keep_memory()
