"""The picture of a plan, drawn without a display: memory per device, stacked by part."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
    for part, colour in zip(PARTS, _COLOURS, strict=True):
        heights = [getattr(row.memory, part) / unit if row.memory else 0.0 for row in plan.rows]
        axes.bar(range(len(plan.rows)), heights, bottom=bottoms, color=colour, label=part)
        bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
    for position, row in enumerate(plan.rows):
        _mark(axes, position, row, bottoms[position], unit)
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


def _mark(axes: Axes, position: int, row: Row, top: float, unit: int) -> None:
    """Write the total above a bar, and draw the device's memory if it is in sight."""
    if row.memory is None:
        total = f"does not fit\n{size(row.needed)}" if row.needed else "does not fit"
    else:
        total = size(row.memory.total)
    axes.annotate(
        total,
        (position, top),
        xytext=(0, 4),
        textcoords="offset points",
        ha="center",
        fontsize=9,
        color="#D55E00" if row.fits is False else "#333333",
    )
    if row.capacity:
        line = row.capacity / unit
        axes.plot([position - 0.45, position + 0.45], [line, line], color="#D55E00", lw=1.5)


def _limits_in_sight(plan: Plan, bottoms: list[float], unit: int) -> list[float]:
    """The devices' memories that bars come near to; others would flatten all bars."""
    limits = [row.capacity / unit for row in plan.rows if row.capacity]
    return [limit for limit in limits if limit <= 4 * max(bottoms)]


def _unit(plan: Plan) -> tuple[int, str]:
    largest = max((row.memory.total for row in plan.rows if row.memory), default=GIB)
    fitting = ((GIB, "GiB"), (_MIB, "MiB"), (_KIB, "KiB"))
    return next(((unit, name) for unit, name in fitting if largest >= unit), fitting[-1])
