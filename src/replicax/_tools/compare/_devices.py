"""The devices of this machine and what each strategy would do with them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, final

from replicax._tools.compare import _strategies, _table
from replicax._tools.compare._machine import choose_devices, inspect_machine, name_range
from replicax._tools.compare._render import gibibytes, machine_rows, placement

if TYPE_CHECKING:
    from replicax._tools.compare._machine import Machine
    from replicax._tools.compare._strategies import StrategyUse


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
    uses = tuple(_strategies.strategy_use(name, chosen) for name in _strategies.NAMES)
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
        _table.aligned(("device", "kind", "platform", "memory"), listed, left=3),
        _table.aligned(("strategy", "as", "replicas", "compute on", "variables on"), used, left=5),
        _table.aligned(("machine", ""), machine_rows(machine), left=2),
    ]
    return "\n\n".join(tables)


def devices_to_json(report: DeviceReport) -> str:
    """Everything in the report, as JSON."""
    return json.dumps(asdict(report), indent=2)
