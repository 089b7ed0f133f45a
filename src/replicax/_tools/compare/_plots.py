"""The two pictures of a comparison, drawn without a display."""

from __future__ import annotations

from typing import TYPE_CHECKING

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, StrMethodFormatter

from replicax._tools.compare._render import counted, difference
from replicax._tools.compare._settings import BASELINE

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes

    from replicax._tools.compare._comparison import Comparison, Measurement

# Colours that people with any colour vision tell apart (Okabe and Ito 2008).
_COLOURS = ("#56B4E9", "#D55E00", "#009E73", "#4B1F6F", "#CC79A7", "#E69F00")
# Equal runs lie on top of each other: wide and solid below, thin and broken above.
_WIDTHS = (9.0, 5.5, 3.0, 1.2)
_DASHES = ("-", "-", (0, (4, 2)), (0, (1, 1.5)))
_MARKERS = ("o", "s", "^", "x")
_MARKER_SIZES = (13, 9.5, 7, 5)


def draw_accuracy(comparison: Comparison, file: Path) -> None:
    """Draw accuracy over epochs, training and test side by side, one curve per strategy."""
    figure = Figure(figsize=(10, 4.4), layout="constrained")
    settings = comparison.settings
    figure.suptitle(
        f"The same training under each strategy: {settings.model} on {settings.dataset}",
        fontsize=13,
    )
    axes: list[Axes] = list(figure.subplots(1, 2, sharey=True))
    for panel, field, title in (
        (axes[0], "accuracy", "training data, during the epoch"),
        (axes[1], "test_accuracy", "test data, after the epoch"),
    ):
        for position, measurement in enumerate(comparison.measurements):
            _draw_curve(panel, measurement, field, position)
        panel.set_title(title, fontsize=11)
        panel.set_xlabel("epoch")
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
        panel.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.4g} %"))
        _tidy(panel)
    axes[0].set_ylabel("accuracy")
    axes[1].legend(title="strategy (weight difference)", loc="lower right", handlelength=3.5)
    _save(figure, file)


def draw_throughput(comparison: Comparison, file: Path) -> None:
    """Draw examples per second as bars, with their range and the ratio to one device."""
    figure = Figure(figsize=(8, 4.4), layout="constrained")
    axes: Axes = figure.subplots()
    names = [measurement.strategy for measurement in comparison.measurements]
    speeds = [comparison.examples_per_second(name) for name in names]
    middles = [speed.median for speed in speeds]
    spread = [
        [speed.median - speed.low for speed in speeds],
        [speed.high - speed.median for speed in speeds],
    ]
    axes.bar(names, middles, color=_cycle(_COLOURS, len(names)), alpha=0.85, width=0.62)
    axes.errorbar(names, middles, yerr=spread, fmt="none", ecolor="#333333", capsize=5, lw=1.2)
    for position, (name, speed) in enumerate(zip(names, speeds, strict=True)):
        axes.annotate(
            _label(comparison, name),
            (position, speed.high),
            xytext=(0, 6),
            textcoords="offset points",
            ha="center",
            fontsize=10,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
        )
    axes.set_xticks(range(len(names)), [_named(m) for m in comparison.measurements])
    axes.set_ylabel("training examples per second")
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.set_ylim(0, 1.2 * max(speed.high for speed in speeds))
    axes.set_title(
        f"Throughput, and how many times one device\n"
        f"median of {counted(comparison.settings.repeats, 'round')} in turn; "
        "lines show lowest to highest",
        fontsize=11,
    )
    _tidy(axes)
    axes.grid(visible=False, axis="x")
    _save(figure, file)


def _draw_curve(axes: Axes, measurement: Measurement, field: str, position: int) -> None:
    accuracies = [getattr(epoch, field) for epoch in measurement.epochs]
    layer = min(position, len(_WIDTHS) - 1)
    axes.plot(
        range(1, len(accuracies) + 1),
        accuracies,
        label=f"{measurement.strategy} ({difference(measurement)})",
        color=_COLOURS[position % len(_COLOURS)],
        linewidth=_WIDTHS[layer],
        linestyle=_DASHES[layer],
        marker=_MARKERS[layer],
        markersize=_MARKER_SIZES[layer],
    )


def _label(comparison: Comparison, name: str) -> str:
    if name == BASELINE:
        return "1 ×"
    ratio = comparison.speed_ratio(name)
    return f"{ratio.median:.2f} ×\n({ratio.low:.2f} to {ratio.high:.2f})"


def _named(measurement: Measurement) -> str:
    return f"{measurement.strategy}\n{counted(measurement.replicas, 'replica')}"


def _cycle(colours: tuple[str, ...], count: int) -> list[str]:
    return [colours[position % len(colours)] for position in range(count)]


def _tidy(axes: Axes) -> None:
    axes.grid(visible=True, color="#DDDDDD", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _save(figure: Figure, file: Path) -> None:
    FigureCanvasAgg(figure)
    figure.savefig(file, dpi=130)
