"""The strategies that a plan knows by name, on devices that need not be here."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from replicax._core.topology import Topology
from replicax._mesh.store import Placement, by_layout, replicated, zero
from replicax._tools._command import unknown
from replicax._tools.plan._compiled import described_strategy

if TYPE_CHECKING:
    from replicax._tools.plan._targets import Target


def _on(topology: Topology, placement: Placement | None = None) -> Any:
    return described_strategy(topology, placement or replicated(topology))


def _zero(target: Target, *, parameters: bool) -> Any:
    topology = Topology.of(target.devices)
    return _on(topology, zero(topology, parameters=parameters))


_MAKERS: dict[str, Callable[[Target], Any]] = {
    "one_device": lambda target: _on(Topology.of(target.devices[:1])),
    "mirrored": lambda target: _on(Topology.of(target.devices)),
    "zero1": lambda target: _zero(target, parameters=False),
    "zero3": lambda target: _zero(target, parameters=True),
}
_MODEL_PARALLEL = re.compile(r"model_parallel:(\d+)")
NAMES = (*_MAKERS, "model_parallel:2")


def strategy_for(name: str, target: Target) -> Any:
    """Make the strategy of that name for the devices of a target.

    `one_device` takes the first alone. `zero1` divides what the optimizer keeps, as by
    `MirroredStrategy(shard_optimizer=True)`; `zero3` divides all variables. `model_parallel:M`
    divides large variables over M devices each.
    """
    divided = _MODEL_PARALLEL.fullmatch(name)
    if divided:
        topology = Topology.of(target.devices, int(divided[1]))
        return _on(topology, by_layout(topology, "auto"))
    if name not in _MAKERS:
        raise unknown("strategy", name, (*_MAKERS, "model_parallel:M"))
    return _MAKERS[name](target)
