"""The strategies of one process by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from replicax._core.errors import UsageError
from replicax._core.topology import default_devices
from replicax._tools._command import unknown
from replicax.strategies import (
    CentralStorageStrategy,
    MirroredStrategy,
    ModelParallelStrategy,
    OneDeviceStrategy,
)

_MAKERS: dict[str, Callable[[Sequence[Any]], Any]] = {
    "mirrored": lambda devices: MirroredStrategy(devices),
    "central_storage": lambda devices: CentralStorageStrategy(devices),
    "zero1": lambda devices: MirroredStrategy(devices, shard_optimizer=True),
    "zero3": lambda devices: MirroredStrategy(devices, shard_parameters=True),
    "model_parallel": lambda devices: ModelParallelStrategy(model_parallel=2, devices=devices),
}
NAMES = tuple(_MAKERS)
DEFAULT = NAMES[:2]


def one_device(devices: Sequence[Any]) -> Any:
    """The strategy that the others are compared with."""
    return OneDeviceStrategy(devices[0])


def make(name: str, devices: Sequence[Any]) -> Any:
    """Make the strategy of that name."""
    if name not in _MAKERS:
        raise unknown("strategy", name, _MAKERS)
    return _MAKERS[name](devices)


def devices(replicas: int | None) -> Sequence[Any]:
    """The devices that replicas are on: so many, or all."""
    found = default_devices()
    wanted = len(found) if replicas is None else replicas
    if not 2 <= wanted <= len(found):
        raise UsageError(
            f"`replicas` must be from 2 to {len(found)}, the devices here, got {wanted}. For "
            "more, start with JAX_PLATFORMS=cpu: `replicax verify` makes virtual devices; in "
            "Python call rx.testing.virtual_devices before rx.verify."
        )
    return found[:wanted]
