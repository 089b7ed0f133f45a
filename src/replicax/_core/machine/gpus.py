"""NVIDIA's GPUs of this machine before JAX starts, and how its processes share them.

Nothing here imports JAX: `replicax run` shares them out among the processes that it starts.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence

from replicax._core.env import (
    CUDA_VISIBLE_DEVICES,
    GPU_FRACTION,
    JAX_PLATFORMS,
    OLD_GPU_FRACTION,
    PREALLOCATE,
    leaves,
    visible_gpus,
)
from replicax._core.errors import ClusterSpecError
from replicax._core.machine import nvidia

_PLUGINS = {
    "cuda": ("jax_cuda12_plugin", "jax_cuda13_plugin"),
    "rocm": ("jax_rocm60_plugin", "jax_rocm7_plugin", "jax_rocm_plugin"),
}
# Of a GPU's memory: CUDA and its libraries need some of each process' own beside it.
_ROOM, _LEAST = 0.9, 0.05


def has_plugin(kind: str) -> bool:
    """Whether JAX has what drives GPUs: of NVIDIA, `cuda`, or of AMD, `rocm`."""
    return any(map(importlib.util.find_spec, _PLUGINS[kind]))


def usable_gpus(environ: Mapping[str, str]) -> list[str]:
    """The names, for CUDA, of the GPUs that JAX would use in this environment."""
    if not leaves(environ.get(JAX_PLATFORMS), "cuda") or not has_plugin("cuda"):
        return []
    return visible_gpus(nvidia.count(), environ)


def own_gpus(processes: int, gpus: Sequence[str]) -> list[dict[str, str]]:
    """Variables that give each process, of those that train in step, GPUs of its own.

    Raises:
        ClusterSpecError: If there are more processes than GPUs. NCCL refuses two on one.
    """
    if not gpus or processes == 1:
        return [{} for _ in range(processes)]
    if processes > len(gpus):
        raise ClusterSpecError(
            f"{processes} workers cannot share {len(gpus)} GPU{'s' * (len(gpus) > 1)}: each needs "
            f"one of its own. Start {len(gpus)}, or set JAX_PLATFORMS=cpu to train on the CPU. See "
            "docs/gpu.md."
        )
    each = len(gpus) // processes
    return [
        {CUDA_VISIBLE_DEVICES: ",".join(gpus[index * each : (index + 1) * each])}
        for index in range(processes)
    ]


def shared_gpus(
    processes: int, gpus: Sequence[str], environ: Mapping[str, str], *, taken: float = 0.0
) -> list[dict[str, str]]:
    """Variables that give each process, of those that compute alone, its part of a GPU.

    GPUs are dealt out in turn. Processes on one have equal parts of its memory, which they take as
    they need it, unless the environment says a fraction. `taken`: the share that this process has
    taken already.
    """
    if not gpus:
        return [{} for _ in range(processes)]
    part = max(_ROOM - taken, _LEAST) / -(-processes // len(gpus))
    # JAX refuses both names of the fraction; an empty one counts as none.
    memory = {PREALLOCATE: "false", GPU_FRACTION: f"{part:.3f}", OLD_GPU_FRACTION: ""}
    if environ.get(GPU_FRACTION) or environ.get(OLD_GPU_FRACTION):
        memory = {}
    return [{CUDA_VISIBLE_DEVICES: gpus[i % len(gpus)], **memory} for i in range(processes)]
