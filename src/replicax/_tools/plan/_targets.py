"""The targets of a plan: described slices of TPUs, or the devices of this machine.

The compiler for TPUs, libtpu, describes and compiles for any slice on a machine without a TPU. XLA
compiles for any number of GPUs where there is one of their kind, on which it tries its kernels.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import jax

from replicax._core.env import only_compiling_for_tpus
from replicax._core.errors import UsageError
from replicax._tools.plan._chips import TPUS, Chip, gpu
from replicax._tools.plan._quiet import quiet

KNOWN = ", ".join([*(f"{name}:…" for name in TPUS), "cpu:8", "gpu:1"])
_SPEC = re.compile(r"^([a-z0-9]+):(\d+(?:x\d+)*)$")
# A host has up to 2 x 2 chips; in a smaller slice it has fewer.
_HOST = (2, 2, 1)
# Two cores of a chip as one device, as JAX sees a TPU v4 by default.
_CHIP_CONFIGS = {"v4": "megacore"}


@final
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
        f"{KNOWN}."
    )


def _slice(name: str, kind: str, axes: tuple[int, ...]) -> Target:
    padded = (*axes, 1, 1)[:3]
    options: dict[str, Any] = {
        "chips_per_host_bounds": tuple(map(min, padded, _HOST)),
        **({"chip_config_name": _CHIP_CONFIGS[kind]} if kind in _CHIP_CONFIGS else {}),
    }
    from jax.experimental import topologies

    try:
        with only_compiling_for_tpus(), quiet():
            described = topologies.get_topology_desc(platform="tpu", topology_name=name, **options)
    except Exception as error:
        raise _explained(name, error) from error
    return Target(name, tuple(described.devices), TPUS[kind], is_described=True)


def _explained(name: str, error: Exception) -> UsageError:
    if _is_without_libtpu(error):
        return UsageError(
            f"Cannot compile for {name!r}: libtpu, Google's compiler, is not installed ({error}). "
            'Run `pip install "replicax[tpu]"`; no TPU is needed.'
        )
    return UsageError(
        f"No slice {name!r}: libtpu says {error}. Slices are whole hosts of 2x2 chips, or parts "
        "of one host, such as v5e:2x4, v5e:4x4, v4:2x2x2 or v5p:2x2x2."
    )


def _is_without_libtpu(error: Exception) -> bool:
    return isinstance(error, ImportError) or "TPU support not installed" in str(error)


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
    from jax.experimental import topologies

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
