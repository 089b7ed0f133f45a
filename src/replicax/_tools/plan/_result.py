"""A plan, as data: one row for each topology and strategy. Its text is in `_render.py`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, final

from replicax._core.errors import needs

if TYPE_CHECKING:
    from types import ModuleType

    from replicax._tools.plan._chips import Chip
    from replicax._tools.plan._collectives import Collective
    from replicax._tools.plan._largest import Largest
    from replicax._tools.plan._reading import Memory
    from replicax._tools.plan._scaling import Scaling


@final
@dataclass(frozen=True)
class Row:
    """One strategy on one topology.

    Args:
        topology: Such as `v5e:4x4`.
        strategy: Such as `mirrored`.
        devices: How many devices it has.
        replicas: Among how many of them a batch is divided.
        batch: The rows of the whole batch.
        chip: The kind of device, if it is in the catalogue.
        capacity: The memory that a program may use on a device, in bytes, if that is known.
        fits: Whether the step fits; None if the memory of the device is not known.
        needed: What the compiler said that a step needs which does not fit, if it did.
        memory: What a device needs; None if the compiler refused the step.
        flops: Operations of one device in a step, as XLA counts them.
        memory_traffic: Bytes that one device reads and writes in a step, as XLA counts them.
        collectives: The collective operations of the program.
        wire: Bytes that one device sends in a step, by the kind of operation.
        largest: The largest batch that fits, if it was looked for.
        compile_seconds: How long the compiler took.
    """

    topology: str
    strategy: str
    devices: int
    replicas: int
    batch: int
    chip: Chip | None
    capacity: int | None
    fits: bool | None
    needed: int | None
    memory: Memory | None
    flops: float
    memory_traffic: float
    collectives: tuple[Collective, ...]
    wire: dict[str, int]
    largest: Largest | None
    compile_seconds: float


def drawing() -> ModuleType:
    """The module that draws."""
    with needs("Drawing a plan", extra="report"):
        from replicax._tools.plan import _plots
    return _plots


@final
@dataclass(frozen=True)
class Plan:
    """What a training step needs on machines that need not be here.

    All numbers are planned: read from compiled programs, or following from them.

    Args:
        name: What was planned.
        parameters: How many numbers the model learns.
        rows: One for each topology and strategy.
        scaling: What is sent on other numbers of chips, if that was asked for: one for each
            strategy and kind of chip.
    """

    name: str
    parameters: int
    rows: tuple[Row, ...]
    scaling: tuple[Scaling, ...] = ()

    def table(self) -> str:
        """The plan as text, with what its columns mean."""
        from replicax._tools.plan import _render

        return _render.to_text(self)

    def to_json(self) -> str:
        """Everything in the plan, as JSON."""
        from replicax._tools.plan import _render

        return _render.to_json(self)

    def plot(self, path: str | Path) -> None:
        """Draw the memory that a device needs: a bar for each row, stacked of its parts.

        Args:
            path: The file to write, such as `plan.png`.

        Raises:
            replicax.errors.UsageError: If matplotlib is missing.
        """
        drawing().draw_memory(self, Path(path))
