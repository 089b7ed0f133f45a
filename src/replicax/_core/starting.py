"""What is decided before the first strategy starts JAX: once in a process, never by an import."""

from __future__ import annotations

import functools

from replicax._core import compilation_cache
from replicax._core.env import leave_idle_libtpu
from replicax.cluster_resolver._tpu_slice import chips_on_bus


@functools.cache
def begin() -> None:
    """Let JAX start sooner: without a library for TPUs that are not here, with programs kept."""
    leave_idle_libtpu(chips_on_bus())
    compilation_cache.begin()
