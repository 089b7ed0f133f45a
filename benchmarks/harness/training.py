"""What a side is told, and what it offers: trainings that take steps when they are asked to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

FIT, LOOP, EVALUATE, PREDICT = "fit", "loop", "evaluate", "predict"
MIRRORED, CENTRAL, WORKERS, SERVERS = "mirrored", "central", "workers", "servers"
STRATEGIES = {
    "default": "default",
    "one": "OneDevice",
    MIRRORED: "Mirrored, 2 devices",
    CENTRAL: "CentralStorage, 2 devices",
    WORKERS: "MultiWorkerMirrored, 2 workers",
    SERVERS: "ParameterServer, 2 workers, 1 server",
}
REPLICAS = 2  # of all strategies but those of one device


@dataclass(frozen=True)
class Plan:
    """What the processes of a side are told at their start.

    Args:
        side: Which of the sides.
        workload: The workload's name.
        strategy: A key of `STRATEGIES`.
        steps: Training steps of a round.
        batch_size: Rows of a step, over all replicas.
        device: The kind of device that the side trains on: "cpu" or "gpu".
        share: Of a GPU's memory, the most that JAX may take; by default three quarters.
    """

    side: str
    workload: str
    strategy: str
    steps: int
    batch_size: int
    device: str = "cpu"
    share: float = 0.75

    @property
    def replicas(self) -> int:
        return 1 if self.strategy in ("default", "one") else REPLICAS


@dataclass(frozen=True)
class Training:
    """A model that is trained in one way.

    Args:
        first: Does a step on the first batch; the loss.
        epoch: Does a step on each batch; the mean loss, or None if it is not known.
        check: Does some steps of which it gives the losses.
        updates: How many updates the optimizer has counted; by default it is not asked.
        cost: "flops" and "bytes" of a step, where the side knows them.
    """

    first: Callable[[], float | None]
    epoch: Callable[[], float | None]
    check: Callable[[], list[float]]
    updates: Callable[[], int] = lambda: 0
    cost: Callable[[], dict[str, float]] = dict


def synchronous(
    first: Callable[[], float], epoch: Callable[[], float], some: Callable[[], float] | None = None
) -> Training:
    """A training whose epochs have losses: two are checked, or two of some of its steps."""
    checked = some or epoch
    return Training(first, epoch, lambda: [checked(), checked()])


class Layers:
    """The layers of a Keras, some of them replaced."""

    def __init__(self, layers: Any, **replaced: Any) -> None:
        self._layers = layers
        self.__dict__.update(replaced)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layers, name)
