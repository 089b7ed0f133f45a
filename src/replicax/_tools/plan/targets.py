"""The targets of a plan: described slices of TPUs, or the devices of this machine; strategies.

The compiler for TPUs, libtpu, describes and compiles for any slice on a machine without a TPU. XLA
compiles for any number of GPUs where there is one of their kind, on which it tries its kernels."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
import tempfile
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, final

import jax
from jax.experimental import topologies

from replicax._core.env import only_compiling_for_tpus
from replicax._core.errors import UsageError
from replicax._core.machine.memory import GIB
from replicax._core.topology import Topology
from replicax._mesh.store import Placement, by_layout, replicated, zero
from replicax._tools.plan.step import described_strategy
from replicax._tools.text import unknown


@final
@dataclass(frozen=True)
class Chip:
    """A kind of device, such as `TPU v5e`; `memory_bytes` is what a program may use."""

    name: str
    memory_bytes: int


# The memory that the compiler lets a program use, as libtpu 0.0.42 says for one too large. A chip
# of v2 and v3 is two devices to JAX: the figure is for half a chip.
TPUS = {
    "v2": Chip("TPU v2", round(7.48 * GIB)),
    "v3": Chip("TPU v3", round(15.48 * GIB)),
    "v4": Chip("TPU v4", round(30.75 * GIB)),
    "v5e": Chip("TPU v5e", round(15.75 * GIB)),
    "v5p": Chip("TPU v5p", round(95.74 * GIB)),
    "v6e": Chip("TPU v6e", round(31.25 * GIB)),
}
_SPEC = re.compile(r"^([a-z0-9]+):(\d+(?:x\d+)*)$")
# A host has up to 2 x 2 chips; in a smaller slice it has fewer.
_HOST = (2, 2, 1)
# Two cores of a chip as one device, as JAX sees a TPU v4 by default.
_CHIP_CONFIGS = {"v4": "megacore"}


@dataclass(frozen=True)
class Target:
    """Devices, described or real, that a program is compiled for.

    The name is such as `v5e:4x4` or `cpu:8`; `chip` is None if their memory is not known.
    """

    name: str
    devices: tuple[Any, ...]
    chip: Chip | None
    is_described: bool = False


def target(name: str) -> Target:
    """Find or describe the devices of a name.

    `v5e:4x4`, `v4:2x2x2` and so on are slices of TPUs, in chips; `cpu:8` are devices of this
    machine; `gpu:2` are GPUs of the kind that is here.
    """
    found = _SPEC.match(name.strip().lower())
    if found and found[1] in TPUS:
        return _slice(name.strip().lower(), found[1], tuple(map(int, found[2].split("x"))))
    if found and found[1] in ("cpu", "gpu") and found[2].isdigit():
        return _local(found[1], int(found[2]))
    raise UsageError(
        f"No topology {name!r} here. Write for example v5e:4x4, v4:2x2x2 or cpu:8; known are "
        f"{', '.join(f'{name}:…' for name in TPUS)}, cpu:8, gpu:1."
    )


def _slice(name: str, kind: str, axes: tuple[int, ...]) -> Target:
    padded = (*axes, 1, 1)[:3]
    options: dict[str, Any] = {
        "chips_per_host_bounds": tuple(map(min, padded, _HOST)),
        **({"chip_config_name": _CHIP_CONFIGS[kind]} if kind in _CHIP_CONFIGS else {}),
    }
    try:
        with only_compiling_for_tpus(), quiet():
            described = topologies.get_topology_desc(platform="tpu", topology_name=name, **options)
    except Exception as error:
        if isinstance(error, ImportError) or "TPU support not installed" in str(error):
            raise UsageError(
                f"Cannot compile for {name!r}: libtpu, Google's compiler, is not installed "
                f'({error}). Run `pip install "replicax[tpu]"`; no TPU is needed.'
            ) from error
        raise UsageError(
            f"No slice {name!r}: libtpu says {error}. Slices are whole hosts of 2x2 chips, or "
            "parts of one host, such as v5e:2x4, v5e:4x4, v4:2x2x2 or v5p:2x2x2."
        ) from error
    return Target(name, tuple(described.devices), TPUS[kind], is_described=True)


def _local(platform: str, count: int) -> Target:
    devices, name = _devices_of(platform), f"{platform}:{count}"
    chip = gpu(devices[0]) if platform == "gpu" and devices else None
    if platform == "gpu" and 0 < len(devices) < count:
        return Target(name, _described_gpus(count), chip, is_described=True)
    if not 1 <= count <= len(devices):
        raise UsageError(
            f"Cannot plan for {name}: this machine has {len(devices)} such devices. "
            + (
                f"Start Python with JAX_NUM_CPU_DEVICES={max(count, 1)}, or call "
                f"`replicax.testing.virtual_devices({max(count, 1)})` first."
                if platform == "cpu"
                else "Plan on a machine with such a GPU, or for a TPU."
            )
        )
    return Target(name, tuple(devices[:count]), chip)


def _described_gpus(count: int) -> tuple[Any, ...]:
    """GPUs of one machine, all of the kind that is here."""
    try:
        described = topologies.get_topology_desc(platform="gpu", topology=f"1x1x{count}")
    except Exception as error:
        raise UsageError(
            f"Cannot plan for gpu:{count}, more GPUs than are here: {error}. Plan for the GPUs of "
            "this machine, or install a newer JAX."
        ) from error
    return tuple(described.devices)


def _devices_of(platform: str) -> Sequence[Any]:
    try:
        return jax.local_devices(backend=platform)
    except RuntimeError:
        return ()


def gpu(device: Any) -> Chip | None:
    """A GPU of this machine, with the memory that JAX may use of it; None if JAX does not say."""
    limit = (device.memory_stats() or {}).get("bytes_limit")
    return Chip(device.device_kind, limit) if limit else None


_PLACEMENTS: dict[str, Callable[[Topology], Placement]] = {
    "one_device": replicated,
    "mirrored": replicated,
    "zero1": functools.partial(zero, parameters=False),
    "zero3": functools.partial(zero, parameters=True),
}
_MODEL_PARALLEL = re.compile(r"model_parallel:(\d+)")


def strategy_for(name: str, target: Target) -> Any:
    """Make the strategy of that name for the devices of a target.

    `one_device` takes the first alone. `zero1` divides what the optimizer keeps, as by
    `MirroredStrategy(shard_optimizer=True)`; `zero3` divides all variables. `model_parallel:M`
    divides large variables over M devices each.
    """
    divided = _MODEL_PARALLEL.fullmatch(name)
    if not divided and name not in _PLACEMENTS:
        raise unknown("strategy", name, (*_PLACEMENTS, "model_parallel:M"))
    devices = target.devices[:1] if name == "one_device" else target.devices
    topology = Topology.of(devices, int(divided[1]) if divided else 1)
    placement = by_layout(topology, "auto") if divided else _PLACEMENTS[name](topology)
    return described_strategy(topology, placement)


_KEPT_FROM = "jax_persistent_cache_min_compile_time_secs"


@contextlib.contextmanager
def quiet() -> Generator[None, None, None]:
    """Drop the standard error in a `with` block, also from native code.

    Without a TPU libtpu warns of what it would need to run programs.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with tempfile.TemporaryFile() as dropped:
            os.dup2(dropped.fileno(), 2)
            yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


@contextlib.contextmanager
def not_kept() -> Generator[None, None, None]:
    """Keep no program of a `with` block on disk: JAX cannot load it without a TPU, and warns."""
    before = getattr(jax.config, _KEPT_FROM)
    jax.config.update(_KEPT_FROM, float("inf"))
    try:
        yield
    finally:
        jax.config.update(_KEPT_FROM, before)
