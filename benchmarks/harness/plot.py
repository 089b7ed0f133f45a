"""A picture of the table: how many times our time the others take."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .report import name_cells, ratios
from .sides import HAND

if TYPE_CHECKING:
    from pathlib import Path

    from .report import Row

SIDES = {"TensorFlow": "tab:orange", "JAX by hand": "tab:gray"}


def draw(path: Path, rows: Sequence[Row]) -> None:
    """Medians as bars with their range, on a logarithmic scale; level at 1."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 1 + 0.4 * len(rows)))
    for place, row in enumerate(rows):
        others = row.tensorflow, row.sides.get(HAND)
        for number, (colour, other) in enumerate(zip(SIDES.values(), others, strict=True)):
            found = ratios(other, row.ours, "wall")
            if not found:
                continue
            middle = statistics.median(found)
            extent = [[middle - min(found)], [max(found) - middle]]
            how = {"left": 1, "color": colour, "xerr": extent, "ecolor": "0.4"}
            axes.barh(place + 0.4 * number, middle - 1, 0.36, **how)
    axes.set_xscale("log")
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_yticks([place + 0.2 for place in range(len(rows))])
    axes.set_yticklabels([", ".join(name_cells(row)) for row in rows], fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel("times Replicax' time of a step (right of 1: Replicax is faster)")
    axes.legend(
        handles=[plt.Rectangle((0, 0), 1, 1, color=c, label=side) for side, c in SIDES.items()]
    )
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90)
