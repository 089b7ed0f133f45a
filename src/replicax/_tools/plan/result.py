"""A plan, as data, text and JSON: one row for each topology and strategy."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from replicax._core.errors import needs
from replicax._core.machine.memory import size
from replicax._tools.plan.scaling import CHIEF_SECONDS, Check, Scaling
from replicax._tools.text import aligned, as_json, wrapped

if TYPE_CHECKING:
    from types import ModuleType

    from replicax._tools.plan.hlo import Collective
    from replicax._tools.plan.planning import LargestBatch
    from replicax._tools.plan.step import Memory
    from replicax._tools.plan.targets import Chip


@final
@dataclass(frozen=True)
class Row:
    """One strategy on one topology."""

    topology: str  # such as `v5e:4x4`
    strategy: str  # such as `mirrored`
    devices: int
    replicas: int  # among which a batch is divided
    batch: int  # rows of the whole one
    chip: Chip | None  # the kind of device, if it is in the catalogue
    capacity: int | None  # bytes that a program may use on a device, if that is known
    fits: bool | None  # None if the memory of the device is not known
    needed: int | None  # bytes of a step that does not fit, if the compiler says them
    memory: Memory | None  # of a device; None if the compiler refused the step
    flops: float  # of one device in a step, as XLA counts them
    memory_traffic: float  # bytes that one device reads and writes, as XLA counts them
    collectives: tuple[Collective, ...]
    wire: dict[str, int]  # bytes that one device sends in a step, by the kind of operation
    largest: LargestBatch | None  # batch, if it was looked for
    compile_seconds: float


def drawing() -> ModuleType:
    with needs("Drawing a plan", extra="report"):
        from replicax._tools.plan import plot
    return plot


@final
@dataclass(frozen=True)
class Plan:
    """The memory, communication and time of a training step on machines that need not be here.

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
        memory = aligned(_MEMORY, list(map(_memory, self.rows)), left=_WORDS)
        step = aligned(_SENT, list(map(_step, self.rows)), left=_WORDS)
        title = (
            f"Planned, not measured: a training step of {self.name} "
            f"({self.parameters:,} parameters)"
        )
        parts = [title, f"memory of a device\n{memory}", f"a step, on each device\n{step}"]
        wire = [f"{row.topology} {row.strategy}: {_wire(row)}" for row in self.rows if row.wire]
        if wire:
            parts.append("\n".join(map(wrapped, ["sent by each device in a step", *wire])))
        parts += map(_scaling, self.scaling)
        parts.append("\n".join(map(wrapped, _caption(self))))
        return "\n\n".join(parts)

    def to_json(self) -> str:
        """Everything in the plan, as JSON."""
        data: dict[str, Any] = asdict(self)
        for one, row in zip(data["rows"], self.rows, strict=True):
            if row.memory is not None:
                one["memory"]["total"] = row.memory.total
        for one, scaling in zip(data["scaling"], self.scaling, strict=True):
            for check, found in zip(one["checks"], scaling.checks, strict=True):
                check["difference"] = found.difference
        return as_json(data)

    def plot(self, path: str | Path) -> None:
        """Draw the memory that a device needs: a bar for each row, stacked of its parts.

        Args:
            path: The file to write, such as `plan.png`.

        Raises:
            replicax.errors.UsageError: If matplotlib is missing.
        """
        drawing().draw_memory(self, Path(path))


_MEMORY = (
    "topology",
    "strategy",
    "global\nbatch",
    "para-\nmeters",
    "opti-\nmizer",
    "batch",
    "tempo-\nraries",
    "rest",
    "total",
    "fits",
    "largest\nbatch",
)
_SENT = ("topology", "strategy", "GFLOPs", "sent")
_WORDS = 2  # the first columns hold words
_UNKNOWN = "-"


def _memory(row: Row) -> list[str]:
    memory = row.memory
    total = memory.total if memory else row.needed
    cells = (
        [memory.parameters, memory.optimizer, memory.batch, memory.temporaries, memory.rest]
        if memory
        else [None] * 5
    )
    return [
        row.topology,
        row.strategy,
        str(row.batch),
        *(_UNKNOWN if cell is None else size(cell) for cell in [*cells, total]),
        fits(row),
        largest(row),
    ]


def _step(row: Row) -> list[str]:
    if row.memory is None:
        return [row.topology, row.strategy, _UNKNOWN, _UNKNOWN]
    sent = size(sum(row.wire.values()))
    return [row.topology, row.strategy, f"{row.flops / 1e9:.3g}", sent]


def fits(row: Row) -> str:
    """Whether a step fits, in a word or two."""
    if row.fits is None:
        return _UNKNOWN
    return "yes" if row.fits else f"NO ({size(row.capacity or 0)})"


def largest(row: Row) -> str:
    """The largest batch that fits, as far as it is known."""
    found = row.largest
    if found is None:
        return _UNKNOWN
    if not found.fits:
        return f"< {found.too_large}"
    return str(found.fits) if found.is_known else f">= {found.fits}"


def _wire(row: Row) -> str:
    return ", ".join(f"{kind} {size(count)}" for kind, count in sorted(row.wire.items()))


def _scaling(scaling: Scaling) -> str:
    """A line for each number of chips, and the check."""
    kinds = sorted({kind for point in scaling.points for kind in point.wire})
    headers = ("chips", "batch", *(f"sent:\n{kind}" for kind in kinds), "agreement:\nchief's CPU")
    cells = [
        [
            f"{one.chips}",
            f"{one.batch}",
            *(size(one.wire.get(kind, 0)) for kind in kinds),
            f"{1e3 * one.agreement:.2f} ms",
        ]
        for one in scaling.points
    ]
    title = (
        f"{scaling.strategy} on other numbers of chips, the batch of a chip as compiled for "
        f"{scaling.compiled}: modelled"
    )
    checks = map(wrapped, map(_check, scaling.checks))
    return "\n".join([title, aligned(headers, cells, left=0), *checks])


def _check(check: Check) -> str:
    kinds = sorted({*check.modelled, *check.compiled})
    sent = ", ".join(
        f"{kind} {size(check.modelled.get(kind, 0))} modelled, {size(check.compiled.get(kind, 0))} "
        "compiled"
        for kind in kinds
    )
    return (
        f"checked with the program compiled for {check.topology}: {sent}; {check.difference:+.1%}"
    )


def _caption(plan: Plan) -> list[str]:
    capacities = dict.fromkeys(
        f"{row.topology}: {row.chip.name if row.chip else 'a device'} has {size(row.capacity)}"
        for row in plan.rows
        if row.capacity
    )
    return [*capacities, *_MEANINGS, *(_OF_SCALING if plan.scaling else ())]


_MEANINGS = (
    "temporaries: activations, gradients and other intermediate values of the step",
    "rest: padding, outputs, code",
    "largest batch: the largest that was tried and fits; a sixteenth more probably does not",
    "GFLOPs: as XLA counts them; a loop counts once, a kernel in C not at all",
    "sent: bytes for the collective operations of the program, if they are rings",
)
_OF_SCALING = (
    "other numbers of chips: modelled; nothing is compiled for them",
    f"agreement of each batch: {1e6 * CHIEF_SECONDS:.0f} µs for a worker; here each chip has one",
)
