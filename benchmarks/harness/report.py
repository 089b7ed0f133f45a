"""Tables of what was measured: ratios by round, and where two sides did not do the same work."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from .machine import one_line
from .measure import Found, Measured, equal_work
from .sides import HAND, KERAS, LEGACY, OURS, TENSORFLOW, TORCH
from .training import STRATEGIES
from .workloads import EVERY, WORKLOADS

if TYPE_CHECKING:
    from pathlib import Path

UNEQUAL, NOTHING = "≠", "–"
MILLI, MEGA = 1e3, 2**20
STEPS = (
    "**A step.** Wall milliseconds, in brackets CPU milliseconds; ratios are medians over rounds, "
    "in brackets their range: above 1, Replicax is faster. † legacy Keras."
)
STARTS = (
    "**Start and memory.** Seconds from the start of the process to its first finished step, and "
    "again when the program is started a second time; peak memory of all processes of a side."
)


@dataclass(frozen=True)
class Row:
    """A workload under a strategy, trained in one way.

    Args:
        workload: Its name.
        strategy: A key of `STRATEGIES`.
        path: A key of the paths of `program`: "fit", "loop", "evaluate" or "predict".
        sides: What was measured, by side.
    """

    workload: str
    strategy: str
    path: str
    sides: dict[str, Measured]

    @classmethod
    def of(cls, workload: str, strategy: str, found: Found) -> list[Row]:
        return [cls(workload, strategy, path, sides) for path, sides in found.items()]

    @classmethod
    def read(cls, told: dict[str, Any]) -> Row:
        sides = {name: Measured(**measured) for name, measured in told["sides"].items()}
        return cls(**{**told, "sides": sides})

    @property
    def key(self) -> tuple[int, int, str]:
        """Where it comes in the table."""
        workloads, strategies = list(EVERY), list(STRATEGIES)
        return workloads.index(self.workload), strategies.index(self.strategy), self.path

    def told(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def ours(self) -> Measured | None:
        return self.sides.get(OURS)

    @property
    def tensorflow(self) -> Measured | None:
        """The side with Keras 3, or the one with legacy Keras where that was asked for."""
        return self.sides.get(TENSORFLOW) or self.sides.get(LEGACY)


def merged(old: Sequence[Row], new: Sequence[Row]) -> list[Row]:
    """The new rows, and the old ones that were not measured again; in the order of the table."""
    rows = {row.key: row for row in [*old, *new]}
    return [rows[key] for key in sorted(rows)]


def ratios(other: Measured | None, ours: Measured | None, what: str) -> list[float] | None:
    """How many times our time the other took, by round; None if there is nothing to compare."""
    if other is None or ours is None or other.error or ours.error:
        return None
    if not equal_work(other, ours):
        return None
    pairs = zip(getattr(other, what), getattr(ours, what), strict=True)
    return [a / b for a, b in pairs if b > 0] or None


def ratio_cell(other: Measured | None, ours: Measured | None, what: str) -> str:
    """The median of the ratios and their range."""
    if other is None or ours is None:
        return NOTHING
    if other.error or ours.error:
        return "fails"
    if not equal_work(other, ours):
        return UNEQUAL
    found = ratios(other, ours, what)
    if not found:
        return NOTHING
    return f"{statistics.median(found):.2f} ({min(found):.2f}–{max(found):.2f})"


def median(rows: Sequence[Row], side: str) -> str:
    """The median ratio of the rows where the side did equal work."""
    found = [ratios(row.sides.get(side), row.ours, "wall") for row in rows]
    medians = [statistics.median(one) for one in found if one]
    every = f"{len(medians)} rows: {statistics.median(medians):.2f}" if medians else "no row"
    return f"median of {every}"


def milliseconds(measured: Measured | None) -> str:
    """Of a step: wall, and CPU in brackets."""
    if measured is None or not measured.wall:
        return NOTHING
    wall, cpu = (MILLI * statistics.median(v) for v in (measured.wall, measured.cpu))
    return f"{wall:.3g} ({cpu:.3g})"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """In Markdown; the first three columns are text."""
    lines = [heads, ["---" if i < 3 else "--:" for i in range(len(heads))], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def steps_table(rows: Sequence[Row]) -> str:
    heads = [
        *("workload", "strategy", "path", "Replicax, ms", "TensorFlow, ms"),
        *("TensorFlow ÷ ours", "the same in CPU", "by hand ÷ ours", "Keras ÷ ours"),
        "PyTorch DDP ÷ ours",
    ]
    lines = []
    for row in rows:
        ours, tensorflow, sides = row.ours, row.tensorflow, row.sides
        lines.append(
            [
                *name_cells(row),
                milliseconds(ours),
                milliseconds(tensorflow) + (" †" if LEGACY in sides else ""),
                ratio_cell(tensorflow, ours, "wall"),
                ratio_cell(tensorflow, ours, "cpu"),
                ratio_cell(sides.get(HAND), ours, "wall"),
                ratio_cell(sides.get(KERAS), ours, "wall"),
                ratio_cell(sides.get(TORCH), ours, "wall"),
            ]
        )
    return table(heads, lines)


def starts_table(rows: Sequence[Row]) -> str:
    """Start-up and memory: of a program, so a row for those paths that are first in one."""
    heads = ["workload", "strategy", "first path", "start to first step, s: Replicax"]
    heads += ["TensorFlow", "second start: Replicax", "TensorFlow", "peak MB: Replicax"]
    heads += ["TensorFlow", "by hand"]
    lines = []
    for row in rows:
        ours, tensorflow, hand = row.ours, row.tensorflow, row.sides.get(HAND)
        if ours is None or ours.start is None:
            continue
        cells = [seconds(one.start if one else None) for one in (ours, tensorflow)]
        cells += [seconds(one.again if one else None) for one in (ours, tensorflow)]
        cells += [
            f"{one.memory / MEGA:.0f}" if one and one.memory else NOTHING
            for one in (ours, tensorflow, hand)
        ]
        lines.append([*name_cells(row), *cells])
    return table(heads, lines)


def seconds(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.1f}"


def name_cells(row: Row) -> list[str]:
    """Title, strategy and path; of real models, which all are on one device, the types instead."""
    workload = EVERY[row.workload]
    kind = STRATEGIES[row.strategy] if row.workload in WORKLOADS else workload.types
    return [workload.title, kind, row.path]


def failures(rows: Sequence[Row]) -> list[str]:
    """A line for each side that failed, and for each that did other work."""
    lines = []
    for row in rows:
        name = ", ".join(name_cells(row))
        for side, measured in row.sides.items():
            if measured.error:
                lines.append(f"- {name}: {side}: `{measured.error}`")
            elif row.ours and not row.ours.error and not equal_work(measured, row.ours):
                losses = [[f"{loss:.4g}" for loss in one.losses] for one in (measured, row.ours)]
                lines.append(f"- {name}: {side}: losses {losses[0]}, ours {losses[1]}")
    return lines


def markdown(rows: Sequence[Row], machine: dict[str, Any], settings: dict[str, Any]) -> str:
    """Everything: the machine, the tables, what failed."""
    return page(rows, machine, settings, STEPS, steps_table(rows), STARTS, starts_table(rows))


def page(
    rows: Sequence[Row], machine: dict[str, Any], settings: dict[str, Any], *parts: str
) -> str:
    """Those parts, after a line about the machine and before what failed."""
    about = f"{one_line(machine)}; {settings['rounds']} rounds; load before: {machine['load'][0]}."
    failed = failures(rows)
    if failed:
        parts += (f"**What failed (fails), or was other work ({UNEQUAL}).**", "\n".join(failed))
    return "\n\n".join([about, *parts]) + "\n"


def kept(path: Path) -> list[Row]:
    """The rows of a JSON file that `keep` wrote; none without the file."""
    told = json.loads(path.read_text())["rows"] if path.exists() else []
    return [Row.read(one) for one in told]


def keep(
    path: Path, rows: Sequence[Row], machine: dict[str, Any], settings: dict[str, Any]
) -> None:
    """Write rows as JSON, with the machine and the settings."""
    path.parent.mkdir(parents=True, exist_ok=True)
    told = {"machine": machine, **settings, "rows": [row.told() for row in rows]}
    path.write_text(json.dumps(told, indent=1) + "\n")


def markers(command: str) -> tuple[str, str]:
    """The lines of a page between which a command writes."""
    return f"<!-- made by `{command}` -->", f"<!-- the end of what `{command}` made -->"


def put_between_markers(text: str, made: str, command: str = "make bench") -> str:
    """A page with the part between the command's markers replaced."""
    begin, end = markers(command)
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"the page must have the lines {begin!r} and {end!r}, in this order")
    return f"{before}{begin}\n\n{made}\n{end}{after}"
