"""The plots of a comparison's page, drawn by matplotlib as SVG.

They are dark or light: colours are drawn as marks, which become variables of the style sheet."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.rcsetup import cycler
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from replicax._tools.compare.result import WEIGHT_LIMIT, Comparison, Measurement
from replicax._tools.compare.text import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_WIDTH = 5.4  # inches of 72 points; the page scales plots to its width
# The colours of the page's style sheet: of words, of axes, of the grid, and of six strategies.
_NAMES = ("--ink", "--muted", "--grid", *(f"--s{number}" for number in range(6)))
_MARKS = tuple(f"#0000e{number}" for number in range(len(_NAMES)))
# Equal curves lie on top of each other: wide ones below, thin ones above.
_WIDTHS = (11.0, 7.0, 3.8, 1.4)
_OF_WORKERS = {"linewidth": 1.8, "linestyle": (0, (4, 2)), "marker": "o", "markersize": 4}
_SMALLEST, _LARGEST = 1e-9, 1.0  # limits of the drawn differences


def accuracy_by_epoch(comparison: Comparison) -> Figure:
    figure, axes = _figure("Accuracy on test data after each epoch, one curve per strategy")
    for position, measurement in enumerate(comparison.measurements):
        epochs = range(1, len(measurement.epochs) + 1)
        axes.plot(epochs, _accuracies(measurement), **_curve(position))
    axes.set_xlabel("epoch")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _percent(axes)
    return figure


def accuracy_by_seconds(comparison: Comparison) -> Figure:
    """Accuracy on the test data against the time that training took; a mark at the first step."""
    figure, axes = _figure("Accuracy on test data against seconds, one curve per strategy")
    for position, measurement in enumerate(comparison.measurements):
        seconds = [epoch.seconds for epoch in measurement.epochs]
        curve = _curve(position) | {"linewidth": 2.0, "marker": "o", "markersize": 4}
        axes.plot(seconds, _accuracies(measurement), **curve)
        axes.plot(
            [measurement.first_step_seconds],
            [0.0],
            color=curve["color"],
            marker="^",
            markersize=9,
            clip_on=False,
            transform=axes.get_xaxis_transform(),
        )
    axes.set_xlabel("seconds of training")
    axes.set_xlim(left=0)
    _percent(axes)
    return figure


def throughput(comparison: Comparison) -> Figure:
    """Every timed round as a point, and their median as a line."""
    figure, axes = _rows(
        "Examples per second in each timed round, with the median", comparison.measurements
    )
    for row, measurement in enumerate(comparison.measurements):
        speeds = [comparison.examples_per_round / s for s in measurement.round_seconds]
        colour = f"C{row}"
        median = comparison.examples_per_second(measurement.strategy).median
        axes.plot(speeds, [row] * len(speeds), "o", color=colour, markersize=8, alpha=0.55)
        axes.vlines(median, row - 0.32, row + 0.32, color=colour, linewidth=3)
        axes.annotate(
            f"{median:,.0f}",
            (median, row - 0.36),
            ha="center",
            va="bottom",
            fontsize=10,
        )
    axes.set_xlim(left=0)
    axes.set_xlabel("training examples per second")
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    return figure


def efficiency(comparison: Comparison) -> Figure:
    """How much of the ideal speed mirrored training keeps with more replicas."""
    figure, axes = _figure("Part of the ideal speed that is kept, against replicas")
    ratios = comparison.speed_by_replicas()
    ideal = {n: 1 if comparison.machine.shares_cores else n for n in ratios}
    middles = [ratio.median / ideal[n] for n, ratio in ratios.items()]
    spread = [
        [(ratio.median - ratio.low) / ideal[n] for n, ratio in ratios.items()],
        [(ratio.high - ratio.median) / ideal[n] for n, ratio in ratios.items()],
    ]
    axes.axhline(1, color=_muted(), linestyle="--", linewidth=1.2)
    axes.annotate("ideal", (1, 1), (0, 5), textcoords="offset points", color=_muted(), fontsize=10)
    axes.errorbar(list(ratios), middles, yerr=spread, color="C2", marker="o", capsize=5)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(list(ratios), [str(n) for n in ratios])
    axes.set_xlabel("replicas")
    _percent(axes, "of the ideal speed")
    axes.set_ylim(0, 1.08 * max(1, *(m + high for m, high in zip(middles, spread[1], strict=True))))
    return figure


def differences(comparison: Comparison) -> Figure:
    """The largest difference of weights of each strategy, beside the limit."""
    figure, axes = _rows(
        "Largest difference from the weights of one device", comparison.synchronous
    )
    for row, measurement in enumerate(comparison.synchronous):
        found = measurement.weight_difference or 0.0
        drawn = _LARGEST if math.isnan(found) else min(max(found, _SMALLEST), _LARGEST)
        colour = f"C{comparison.measurements.index(measurement)}"
        axes.plot([drawn], [row], "o", color=colour, markersize=10, clip_on=False)
        axes.annotate(
            f"{found:.1e}" if found else "0: every bit is equal",
            (drawn, row),
            (9, 0) if drawn < WEIGHT_LIMIT else (-9, 0),
            textcoords="offset points",
            va="center",
            ha="left" if drawn < WEIGHT_LIMIT else "right",
            fontsize=10,
        )
    axes.axvline(WEIGHT_LIMIT, linestyle="--", linewidth=1.3)
    axes.annotate("limit", (WEIGHT_LIMIT, -0.5), (4, -3), textcoords="offset points", va="top")
    axes.set_xscale("log")
    axes.set_xlim(_SMALLEST, _LARGEST)
    axes.set_xticks([10.0**k for k in range(-9, 1, 3)])
    axes.set_xlabel("largest relative difference of weights")
    return figure


def _figure(label: str, height: float = 3.5) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(_WIDTH, height), layout="constrained")
    figure.set_label(label)
    return figure, figure.subplots()


def _rows(label: str, measurements: Sequence[Measurement]) -> tuple[Figure, Axes]:
    """Axes with a row for each strategy, the first on top."""
    figure, axes = _figure(label, 0.8 + 0.62 * len(measurements))
    labels = [f"{m.strategy}\n{counted(m.replicas, 'replica')}" for m in measurements]
    axes.set_yticks(range(len(measurements)), labels)
    axes.set_ylim(len(measurements) - 0.5, -0.75)
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)
    return figure, axes


def _accuracies(measurement: Measurement) -> list[float]:
    return [epoch.test_accuracy for epoch in measurement.epochs]


def _curve(position: int) -> dict[str, Any]:
    is_local = position < len(_WIDTHS)
    style = {"linewidth": _WIDTHS[position]} if is_local else _OF_WORKERS
    return {"color": f"C{position}", **style}


def _percent(axes: Axes, label: str = "accuracy on test data") -> None:
    axes.set_ylabel(label)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.4g} %"))


def svg(draw: Callable[[Comparison], Figure], comparison: Comparison) -> str:
    """A plot as an HTML element, without a size or address, with unique ids."""
    stream = io.StringIO()
    with mpl.rc_context(_style()):
        figure = draw(comparison)
        FigureCanvasSVG(figure)
        figure.savefig(stream, format="svg", transparent=True, metadata={"Date": None})
    text, name = stream.getvalue(), draw.__name__
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r' (?:width|height)="[0-9.]+pt"| xmlns(?::xlink)?="[^"]*"', "", text)
    text = re.sub(r' id="', f' id="{name}-', text)
    text = re.sub(r'(href="|url\()#', rf"\1#{name}-", text)
    for mark, variable in zip(_MARKS, _NAMES, strict=True):
        text = text.replace(mark, f"var({variable})")
    begin = f'<svg role="img" aria-labelledby="{name}-title"'
    return text.replace("<svg", begin, 1).replace(
        ">", f'><title id="{name}-title">{escape(str(figure.get_label()))}</title>', 1
    )


def _style() -> dict[Any, Any]:
    ink, muted, grid, *strategies = _MARKS
    return {
        "svg.fonttype": "none",
        "svg.hashsalt": "replicax",  # equal data give equal files
        "font.size": 11,
        "text.color": ink,
        "axes.edgecolor": muted,
        "axes.labelcolor": ink,
        "xtick.color": muted,
        "ytick.color": muted,
        "xtick.labelcolor": ink,
        "ytick.labelcolor": ink,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.prop_cycle": cycler(color=strategies),
        "grid.color": grid,
    }


def _muted() -> str:
    return mpl.rcParams["axes.edgecolor"]
