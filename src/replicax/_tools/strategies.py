"""The strategies of one process by name: how each is made, and how a program writes that."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax

import replicax as rx
from replicax._tools.machine import device_name
from replicax._tools.text import unknown

_MAKERS: dict[str, Callable[[Sequence[Any]], rx.Strategy]] = {
    "default": lambda devices: rx.get_strategy(),
    "one_device": lambda devices: rx.OneDeviceStrategy(devices[0]),
    "mirrored": lambda devices: rx.MirroredStrategy(devices),
    "central_storage": lambda devices: rx.CentralStorageStrategy(devices, _home(devices)),
    "zero1": lambda devices: rx.MirroredStrategy(devices, shard_optimizer=True),
    "zero3": lambda devices: rx.MirroredStrategy(devices, shard_parameters=True),
    "model_parallel": lambda devices: rx.ModelParallelStrategy(model_parallel=2, devices=devices),
}


def make(name: str, devices: Sequence[jax.Device], known: Collection[str]) -> rx.Strategy:
    """Make the strategy of that name, if it is known to the tool, for these devices."""
    if name not in known:
        raise unknown("strategy", name, known)
    return _MAKERS[name](devices)


def call(name: str, devices: Sequence[jax.Device]) -> str:
    """The Python expression that makes the strategy of that name for these devices."""
    names = ", ".join(f'"{device_name(device)}"' for device in devices)
    several = "" if list(devices) == jax.local_devices() else f"[{names}]"
    home = _home(devices)
    central = ", ".join([*[several] * bool(several), *[f'parameter_device="{home}"'] * bool(home)])
    return {
        "default": "get_strategy()",
        "one_device": f'OneDeviceStrategy("{device_name(devices[0])}")',
        "mirrored": f"MirroredStrategy({several})",
        "central_storage": f"CentralStorageStrategy({central})",
    }[name]


def _home(devices: Sequence[jax.Device]) -> str | None:
    """Where a central storage is, if not where it is by itself.

    Of one accelerator it would be the accelerator, and nothing but a strategy for one device.
    """
    if len(devices) > 1 or devices[0].platform == "cpu":
        return None
    try:
        return device_name(jax.local_devices(backend="cpu")[0])
    except RuntimeError:  # with JAX_PLATFORMS=cuda there is no CPU
        return None
