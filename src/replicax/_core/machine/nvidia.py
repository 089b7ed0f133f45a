"""NVIDIA's GPUs of this machine before JAX starts, and how its processes share them.

Their number is read from files, and all else from `nvidia-smi`, which hangs if the driver is stuck:
then it is given up after some seconds. Nothing here imports JAX.
"""

from __future__ import annotations

import contextlib
import importlib.util
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

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

_LISTED = Path("/proc/driver/nvidia/gpus")
_DEVICES = Path("/dev")
_MIB = 2**20
_SECONDS = 10.0  # eight GPUs whose driver is not loaded yet take about five


class NoAnswerError(Exception):
    """`nvidia-smi` is not there, has failed, or takes too long."""


@final
@dataclass(frozen=True)
class Gpu:
    """One GPU; None for values that the driver does not report, as of a part of a GPU (MIG)."""

    number: int
    uuid: str
    name: str
    memory_bytes: int | None
    free_bytes: int | None
    capability: tuple[int, int] | None  # compute capability, such as (9, 0)


@final
@dataclass(frozen=True)
class GpuProcess:
    """A process that holds memory of a GPU; in a container its number may be the host's."""

    pid: int
    uuid: str
    name: str
    memory_bytes: int | None


@final
@dataclass(frozen=True)
class Driver:
    """The driver, the highest version of CUDA that it offers, and what is on its GPUs."""

    version: str
    cuda: tuple[int, int] | None
    gpus: tuple[Gpu, ...]
    processes: tuple[GpuProcess, ...]


def count(listed: Path = _LISTED, devices: Path = _DEVICES) -> int:
    found = list(listed.iterdir()) if listed.is_dir() else []
    # Sandboxes such as gVisor have the devices, but not the driver's list.
    return len(found or [one for one in devices.glob("nvidia*") if one.name[6:].isdecimal()])


def query(seconds: float = _SECONDS) -> Driver:
    """The driver, its GPUs and their processes; `NoAnswerError` if `nvidia-smi` does not answer."""
    try:
        rows = _rows("gpu", (*_OF_GPU, "compute_cap", "name"), seconds)
    except NoAnswerError as error:  # drivers before 510 do not know `compute_cap`
        if "compute_cap" not in str(error):
            raise
        rows = [[*row[:-1], "", row[-1]] for row in _rows("gpu", (*_OF_GPU, "name"), seconds)]
    gpus = [
        Gpu(int(number), uuid, name, _bytes(total), _bytes(free), _version(capability))
        for number, uuid, total, free, _, capability, name in rows
        if number.isdecimal()
    ]
    processes = [
        GpuProcess(int(pid), uuid, name, _bytes(used))
        for pid, uuid, used, name in _rows("compute-apps", _OF_PROCESS, seconds)
        if pid.isdecimal()
    ]
    version = rows[0][_OF_GPU.index("driver_version")] if rows else ""
    # Newer drivers write `CUDA UMD Version`.
    cuda = re.search(r"CUDA(?: \w+)? Version\s*:\s*(\d+\.\d+)", _output((), seconds))
    return Driver(version, _version(cuda[1]) if cuda else None, tuple(gpus), tuple(processes))


def visible_uuids(uuids: Sequence[str], environ: Mapping[str, str] | None = None) -> list[str]:
    """The GPUs that `CUDA_VISIBLE_DEVICES` leaves to this process, in its order.

    The variable may name a GPU by the start of its UUID.
    """
    return [
        uuid
        for name in visible_gpus(len(uuids), environ)
        for number, uuid in enumerate(uuids)
        if name == str(number) or name[:1].isalpha() and uuid.startswith(name)
    ]


def utilization() -> list[float | None]:
    """The share of the last second in which each GPU of this process was busy.

    `NoAnswerError` if `nvidia-smi` does not answer.
    """
    rows = _rows("gpu", ("uuid", "utilization.gpu"), _SECONDS)
    used = {uuid: int(percent) / 100 if percent.isdecimal() else None for uuid, percent in rows}
    return [used[uuid] for uuid in visible_uuids(list(used))]


_OF_GPU = ("index", "uuid", "memory.total", "memory.free", "driver_version")
_OF_PROCESS = ("pid", "gpu_uuid", "used_memory", "process_name")


def _rows(kind: str, fields: Sequence[str], seconds: float) -> list[list[str]]:
    """The answer to a query; the last field may have commas."""
    query = (f"--query-{kind}={','.join(fields)}", "--format=csv,noheader,nounits")
    lines = [line.strip() for line in _output(query, seconds).splitlines()]
    rows = [line.split(", ", len(fields) - 1) for line in lines]
    return [row for row in rows if len(row) == len(fields)]  # other lines are notes


def _output(options: Sequence[str], seconds: float) -> str:
    try:
        process = subprocess.Popen(
            ["nvidia-smi", *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise NoAnswerError(f"nvidia-smi cannot be started: {error.strerror}") from None
    try:
        output, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # a stuck driver may hold it
            process.communicate(timeout=1)
        raise NoAnswerError(f"nvidia-smi does not answer within {seconds:g} s") from None
    if process.returncode:
        first = (output.strip().splitlines() or [f"exit code {process.returncode}"])[0]
        raise NoAnswerError(f"nvidia-smi fails: {first}")
    return output


def _bytes(mebibytes: str) -> int | None:
    return int(mebibytes) * _MIB if mebibytes.isdecimal() else None


def _version(text: str) -> tuple[int, int] | None:
    found = re.fullmatch(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else None


_PLUGINS = {
    "cuda": ("jax_cuda12_plugin", "jax_cuda13_plugin"),
    "rocm": ("jax_rocm60_plugin", "jax_rocm7_plugin", "jax_rocm_plugin"),
}
# Shares of a GPU's memory: all that JAX may take (CUDA needs the rest), and the least of a process.
_USABLE, _LEAST = 0.9, 0.05


def has_plugin(kind: str) -> bool:
    """Whether JAX's plugin for GPUs is installed: `cuda` for NVIDIA, `rocm` for AMD."""
    return any(map(importlib.util.find_spec, _PLUGINS[kind]))


def usable_gpus(environ: Mapping[str, str]) -> list[str]:
    if not leaves(environ.get(JAX_PLATFORMS), "cuda") or not has_plugin("cuda"):
        return []
    return visible_gpus(count(), environ)


def own_gpus(processes: int, gpus: Sequence[str]) -> list[dict[str, str]]:
    """Variables that give each of the processes that train together GPUs of its own.

    `ClusterSpecError` if there are more processes than GPUs: NCCL refuses two on one.
    """
    if not gpus or processes == 1:
        return [{} for _ in range(processes)]
    if processes > len(gpus):
        raise ClusterSpecError(
            f"{processes} workers cannot share {len(gpus)} GPU{'s' * (len(gpus) > 1)}: each needs "
            f"one of its own. Start {len(gpus)}, or set JAX_PLATFORMS=cpu to train on the CPU. See "
            "docs/accelerators.md."
        )
    each = len(gpus) // processes
    parts = (gpus[index * each : (index + 1) * each] for index in range(processes))
    return [{CUDA_VISIBLE_DEVICES: ",".join(part)} for part in parts]


def shared_gpus(
    processes: int, gpus: Sequence[str], environ: Mapping[str, str], *, taken: float = 0.0
) -> list[dict[str, str]]:
    """Variables that give each process a part of a GPU; GPUs are assigned in turn.

    Processes on one GPU have equal parts of its memory, which they allocate as needed, unless the
    environment has a fraction. `taken`: the share that this process has allocated.
    """
    if not gpus:
        return [{} for _ in range(processes)]
    part = max(_USABLE - taken, _LEAST) / -(-processes // len(gpus))
    # JAX refuses both names of the fraction; an empty one counts as none.
    memory = {PREALLOCATE: "false", GPU_FRACTION: f"{part:.3f}", OLD_GPU_FRACTION: ""}
    if environ.get(GPU_FRACTION) or environ.get(OLD_GPU_FRACTION):
        memory = {}
    return [{CUDA_VISIBLE_DEVICES: gpus[i % len(gpus)], **memory} for i in range(processes)]
