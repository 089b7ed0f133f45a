"""The picture of a plan, drawn without a display: memory per device, stacked by part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from replicax._core.folder import named
from replicax._core.machine.memory import GIB, size

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes

    from replicax._tools.plan.result import Plan, Row


PARTS = ("parameters", "optimizer", "batch", "temporaries", "rest")
# Colours that people with any colour vision tell apart (Okabe and Ito 2008).
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#56B4E9", "#BBBBBB")
_MIB, _KIB = 2**20, 2**10


def draw_memory(plan: Plan, file: Path) -> None:
    """Draw a bar for each row: the need of a device, and a line at its memory."""
    figure = Figure(figsize=(max(6.0, 1.5 + 1.15 * len(plan.rows)), 5), layout="constrained")
    axes: Axes = figure.subplots()
    unit, name = _unit(plan)
    bottoms = [0.0] * len(plan.rows)
    bars: Any = None
    for part, colour in zip(PARTS, _COLOURS, strict=True):
        heights = [getattr(row.memory, part) / unit if row.memory else 0.0 for row in plan.rows]
        bars = axes.bar(range(len(plan.rows)), heights, bottom=bottoms, color=colour, label=part)
        bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
    totals = axes.bar_label(bars, list(map(_total, plan.rows)), padding=4, fontsize=9)
    for position, (row, total) in enumerate(zip(plan.rows, totals, strict=True)):
        total.set_color("#D55E00" if row.fits is False else "#333333")
        if row.capacity:
            line = row.capacity / unit
            axes.hlines(line, position - 0.45, position + 0.45, colors="#D55E00", linewidth=1.5)
    names = [f"{row.strategy}\n{row.topology}\nbatch {row.batch}" for row in plan.rows]
    axes.set_xticks(range(len(names)), names, fontsize=9)
    axes.set_ylabel(f"{name} per device")
    axes.set_ylim(0, 1.15 * max([*bottoms, *_limits_in_sight(plan, bottoms, unit)]) or 1)
    axes.set_title(f"Planned memory of a training step of {plan.name}", fontsize=11)
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    axes.grid(visible=True, axis="y", color="#DDDDDD", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    FigureCanvasAgg(figure)
    with named(file):
        figure.savefig(file, dpi=130)


def _total(row: Row) -> str:
    if row.memory is not None:
        return size(row.memory.total)
    return f"does not fit\n{size(row.needed)}" if row.needed else "does not fit"


def _limits_in_sight(plan: Plan, bottoms: list[float], unit: int) -> list[float]:
    """The devices' memories that bars come near to; others would flatten all bars."""
    limits = [row.capacity / unit for row in plan.rows if row.capacity]
    return [limit for limit in limits if limit <= 4 * max(bottoms)]


def _unit(plan: Plan) -> tuple[int, str]:
    largest = max((row.memory.total for row in plan.rows if row.memory), default=GIB)
    fitting = ((GIB, "GiB"), (_MIB, "MiB"), (_KIB, "KiB"))
    return next(((unit, name) for unit, name in fitting if largest >= unit), fitting[-1])
