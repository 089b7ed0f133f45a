"""Settings that must be made before JAX starts: devices, memory, the compilation cache.

A process can join a cluster, and set its number of CPU devices, only until JAX starts. Programs ask
for GPUs before that, so GPUs are counted without starting JAX. An import does nothing of this.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path

import jax

from replicax._core.env import (
    PREALLOCATE,
    chips_on_bus,
    demand_deterministic_gpus,
    leave_idle_libtpu,
    leaves,
    set_variables,
    visible_gpus,
)
from replicax._core.errors import BackendAlreadyInitialized
from replicax._core.machine import compilation_cache, nvidia
from replicax._core.machine.compilation_cache import jax_setting
from replicax._core.machine.memory import keep_memory
from replicax._core.machine.nvidia import has_plugin

# The parent's process id, in a process forked after JAX had started. It lacks JAX's threads and
# would wait for them forever.
forked: list[int] = []
_started: list[bool] = []  # whether JAX had, at the latest fork


def fork_error() -> BackendAlreadyInitialized:
    """The error of a call that needs devices in a `forked` process."""
    return BackendAlreadyInitialized(
        f"No devices in this process, a fork of process {forked[0]}, in which JAX had started. Use "
        '`multiprocessing.get_context("spawn")`, or fork before the first strategy.'
    )


def _ask_before_fork() -> None:
    # In the parent: in the child, another thread's lock on JAX would never be released.
    _started[:] = [is_started()]


def _note_fork() -> None:
    if _started == [True]:
        forked[:] = [os.getppid()]


def begin() -> None:
    """Prepare the first use of JAX; an error in a process that was forked after it."""
    if forked:
        raise fork_error()
    _begin()


@functools.cache
def _begin() -> None:
    """Prepare the start of JAX: no libtpu without a TPU, the compilation cache, malloc settings.

    `keep_memory` must run before JAX starts threads, because their heaps ignore later settings: a
    step of a small CNN on a CPU would have 27,000 page faults instead of none.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_ask_before_fork, after_in_child=_note_fork)
    leave_idle_libtpu()
    compilation_cache.begin()
    keep_memory()


_AMD = Path("/sys/class/kfd/kfd/topology/nodes")


def is_started() -> bool:
    """Whether JAX has started, so that its devices cannot be changed any more."""
    count = jax_setting("jax_num_cpu_devices")
    try:
        jax.config.update("jax_num_cpu_devices", count + 1)  # taken only before
    except RuntimeError:
        return True
    jax.config.update("jax_num_cpu_devices", count)
    return False


def count_cpu_devices() -> int:
    if is_started():
        return len(jax.local_devices(backend="cpu"))
    return max(1, jax_setting("jax_num_cpu_devices"))


def count_accelerators(kind: str, *, amd: Path = _AMD) -> int:
    if is_started():
        try:
            return len(jax.local_devices(backend=kind.lower()))
        except RuntimeError:
            return 0
    if not leaves(jax_setting("jax_platforms"), kind):
        return 0
    if kind == "TPU":
        return chips_on_bus() if importlib.util.find_spec("libtpu") else 0
    if has_plugin("cuda") and (gpus := nvidia.count()):
        return len(visible_gpus(gpus))
    if has_plugin("rocm") and amd.is_dir():
        nodes = [(node / "properties").read_text() for node in amd.iterdir()]
        return len(visible_gpus(sum("simd_count 0\n" not in text for text in nodes)))
    return 0


def nvidia_gpus() -> list[str]:
    if not has_plugin("cuda") or not count_accelerators("GPU"):
        return []
    names, chosen = visible_gpus(nvidia.count()), jax_setting("jax_cuda_visible_devices")
    return names if chosen in (None, "all") else [names[int(n)] for n in chosen.split(",")]


def set_cpu_devices(count: int) -> None:
    if count != count_cpu_devices():
        _before_start(f"{count} devices of the CPU")
        jax.config.update("jax_num_cpu_devices", count)


def use_gpus(numbers: Sequence[int], of: int) -> None:
    if len(numbers) == of:
        return
    _before_start(f"GPUs {list(numbers)} of {of}")
    if not numbers:
        jax.config.update("jax_platforms", "cpu")
    else:
        for setting in ("jax_cuda_visible_devices", "jax_rocm_visible_devices"):
            jax.config.update(setting, ",".join(map(str, numbers)))


def grow_gpu_memory(grow: bool) -> None:
    """Let JAX allocate GPU memory as needed, or most of it at the start."""
    _before_start(f"memory growth {grow}")
    set_variables({PREALLOCATE: "false" if grow else "true"})


def compute_deterministically() -> None:
    """Make GPU kernels deterministic; CPUs and TPUs are."""
    if is_started() and jax.default_backend() != "gpu":
        return
    _before_start("deterministic kernels")
    demand_deterministic_gpus()


def _before_start(what: str) -> None:
    if is_started():
        raise BackendAlreadyInitialized(
            f"Cannot set up {what}: JAX has started already. Move the call to the top of the "
            "program, before arrays, models and strategies are made."
        )
