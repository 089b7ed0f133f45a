"""The devices of this machine and what each strategy would do with them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, final

import jax
import keras

from replicax._tools.compare.settings import LOCAL
from replicax._tools.compare.text import gibibytes, machine_rows, placement
from replicax._tools.machine import (
    Machine,
    choose_devices,
    device_name,
    inspect_machine,
    name_range,
)
from replicax._tools.strategies import call, make
from replicax._tools.text import aligned, as_json

if TYPE_CHECKING:
    import replicax as rx


@final
@dataclass(frozen=True)
class StrategyUse:
    """How a strategy would use the devices of a machine; `call` is the code that makes it."""

    strategy: str
    call: str
    replicas: int
    compute_devices: tuple[str, ...]
    variable_devices: tuple[str, ...]


def strategy_use(name: str, devices: Sequence[jax.Device]) -> StrategyUse:
    """Find out what a strategy would use, by making it and one variable in its scope."""
    strategy = make(name, devices, LOCAL)
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
    return tuple(strategy.extended.worker_devices)


def variable_devices(variables: Iterable[Any]) -> tuple[str, ...]:
    """The devices that hold the arrays of Keras variables, whatever the strategy says."""
    found = {device for variable in variables for device in variable.value.devices()}
    return tuple(device_name(device) for device in sorted(found, key=lambda d: d.id))


@final
@dataclass(frozen=True)
class DeviceReport:
    """A machine, and what each strategy would use of it."""

    machine: Machine
    strategies: tuple[StrategyUse, ...]


def devices(replicas: int | None = None) -> DeviceReport:
    """Look at this machine and make every strategy on it once.

    Args:
        replicas: How many devices the strategies get; by default all.

    Returns:
        What was found.

    Raises:
        replicax.errors.UsageError: If there are fewer devices.

    Example:
        >>> from replicax.report import devices
        >>> [use.strategy for use in devices().strategies]
        ['default', 'one_device', 'mirrored', 'central_storage']
    """
    chosen = choose_devices(replicas)
    uses = tuple(strategy_use(name, chosen) for name in LOCAL)
    return DeviceReport(inspect_machine(), uses)


def devices_to_text(report: DeviceReport) -> str:
    """Three tables: devices, strategies, and the machine with its versions."""
    machine = report.machine
    listed = [(d.name, d.kind, d.platform, gibibytes(d.memory_bytes)) for d in machine.devices]
    used = [
        (
            use.strategy,
            use.call,
            str(use.replicas),
            name_range(use.compute_devices),
            placement(use.variable_devices),
        )
        for use in report.strategies
    ]
    tables = [
        aligned(("device", "kind", "platform", "memory"), listed, left=3),
        aligned(("strategy", "as", "replicas", "compute on", "variables on"), used, left=5),
        aligned(("machine", ""), machine_rows(machine), left=2),
    ]
    return "\n\n".join(tables)


def devices_to_json(report: DeviceReport) -> str:
    return as_json(asdict(report)).rstrip()
