"""The strategies that a machine offers, in one table: how each is made, and what it uses."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import jax
import keras

import replicax as rx
from replicax._tools._command import unknown
from replicax._tools.compare._machine import device_name
from replicax._tools.compare._places import places, places_of_servers
from replicax._tools.compare._settings import LOCAL, OF_WORKERS, PARAMETER_SERVER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from replicax._tools.compare._comparison import Place

NAMES = LOCAL


@final
@dataclass(frozen=True)
class StrategyUse:
    """What a strategy would do with the devices of a machine; `call` is how a program gets it."""

    strategy: str
    call: str
    replicas: int
    compute_devices: tuple[str, ...]
    variable_devices: tuple[str, ...]


@final
@dataclass(frozen=True)
class Way:
    """A way to train: how its strategy is made, and how to find where it puts things.

    `find_places` gets the strategy, a model trained under it, and the rows of a full batch.
    """

    name: str
    make: Callable[[], rx.Strategy]
    find_places: Callable[[rx.Strategy, keras.Model, int], tuple[Place, ...]] = places


def way(name: str, devices: Sequence[jax.Device], workers: int | None) -> Way:
    """The way to train under the strategy of that name, which this process makes."""
    if name != PARAMETER_SERVER:
        return Way(name, lambda: make(name, devices))
    return Way(
        name,
        lambda: rx.ParameterServerStrategy(num_workers=workers, num_ps=1),
        lambda _strategy, model, _rows: places_of_servers(model, workers or 1),
    )


def check(name: str, devices: Sequence[jax.Device]) -> None:
    """Find what is wrong with a strategy before any trains."""
    if name not in OF_WORKERS:
        make(name, devices)
    elif name == PARAMETER_SERVER and importlib.util.find_spec("cloudpickle") is None:
        raise rx.errors.UsageError(
            f"Cannot compare {name}: cloudpickle is not installed. Run `pip install "
            "'replicax[ps]'`, or name the other strategies with `--strategies`."
        )


def make(name: str, devices: Sequence[jax.Device]) -> rx.Strategy:
    """Make the strategy of that name for these devices."""
    match name:
        case "default":
            return rx.get_strategy()
        case "one_device":
            return rx.OneDeviceStrategy(devices[0])
        case "mirrored":
            return rx.MirroredStrategy(devices)
        case "central_storage":
            return rx.CentralStorageStrategy(devices, _home(devices))
        case _:
            raise unknown("strategy", name, NAMES)


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


def strategy_use(name: str, devices: Sequence[jax.Device]) -> StrategyUse:
    """Find out what a strategy would use, by making it and one variable in its scope."""
    strategy = make(name, devices)
    with strategy.scope():
        variable = keras.Variable(0.0, name="probe")
    return StrategyUse(
        name,
        call(name, devices),
        strategy.num_replicas_in_sync,
        compute_devices(strategy),
        variable_devices([variable]),
    )


def compute_devices(strategy: rx.Strategy) -> tuple[str, ...]:
    """The devices on which the replicas of a strategy compute."""
    return tuple(strategy.extended.worker_devices)


def variable_devices(variables: Iterable[Any]) -> tuple[str, ...]:
    """The devices that hold Keras variables, as they are and not as they should be."""
    found = {device for variable in variables for device in variable.value.devices()}
    return tuple(device_name(device) for device in sorted(found, key=lambda d: d.id))
