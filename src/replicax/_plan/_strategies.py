"""The strategies that a plan knows by name, on devices that need not be here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from replicax._core.errors import UsageError
from replicax._core.topology import Topology
from replicax._mesh.store import replicated
from replicax._plan._compiled import described_strategy
from replicax._plan._targets import Target


def _one_device(target: Target) -> Any:
    topology = Topology.of(target.devices[:1])
    return described_strategy(topology, replicated(topology))


def _mirrored(target: Target) -> Any:
    topology = Topology.of(target.devices)
    return described_strategy(topology, replicated(topology))


_MAKERS: dict[str, Callable[[Target], Any]] = {"one_device": _one_device, "mirrored": _mirrored}
NAMES = tuple(_MAKERS)


def strategy_for(name: str, target: Target) -> Any:
    """Make the strategy of that name for the devices of a target.

    Raises:
        UsageError: If there is none of that name.
    """
    if name not in _MAKERS:
        raise UsageError(
            "A plan knows its strategies by name. "
            f"Received: {name!r}. Known are {', '.join(NAMES)}. Name one or several of these."
        )
    return _MAKERS[name](target)
