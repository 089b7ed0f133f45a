"""A comparison as one page of HTML that needs nothing beside it: a pure function of the data.

Plots are in `plots.py`, the style in `page.css`."""

from __future__ import annotations

from dataclasses import replace
from html import escape
from importlib import resources

from replicax._tools.compare import plots
from replicax._tools.compare.result import WEIGHT_LIMIT, Comparison, Interval, Measurement
from replicax._tools.compare.settings import BASELINE, MULTI_WORKER
from replicax._tools.compare.text import (
    HEADERS,
    WORDS,
    beside_accelerators,
    caption,
    counted,
    difference,
    machine_rows,
    rows,
    title,
    verdict,
    virtual_devices,
    with_spread,
)
from replicax._tools.text import html_table

_DATA = {
    "digits": "1797 handwritten digits of 8 × 8 pixels, which come with scikit-learn.",
    "cifar10": "CIFAR-10: 60000 photographs of 32 × 32 pixels in ten classes.",
}

_ORDER = "One row for each strategy, in the order in which they trained"


def to_html(comparison: Comparison) -> str:
    parts = {
        "table": ("Results", _results(comparison)),
        "accuracy": ("Accuracy", _accuracy(comparison)),
        "throughput": ("Throughput", _throughput(comparison)),
        "scaling": ("Scaling", _scaling(comparison)),
        "verification": ("Verification", _verification(comparison)),
        "environment": ("Environment", _environment(comparison)),
        "again": ("Run it again", _again(comparison)),
    }
    links = "".join(f'<a href="#{name}">{head}</a>' for name, (head, _) in parts.items())
    sections = "\n".join(
        f'<section id="{name}" aria-labelledby="{name}-head">'
        f'<h2 id="{name}-head">{head}</h2>\n{body}\n</section>'
        for name, (head, body) in parts.items()
    )
    style = resources.files("replicax._tools.compare").joinpath("page.css").read_text("utf-8")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'  # or the browser asks for one
        f"<title>{escape(headline(comparison))} replicax compare</title>\n"
        f"<style>\n{style}</style>\n</head>\n<body>\n<main>\n<header>\n{_header(comparison)}\n"
        f'<nav aria-label="Sections">{links}</nav>\n</header>\n{sections}\n</main>\n'
        "</body>\n</html>\n"
    )


def headline(comparison: Comparison) -> str:
    """The answer that readers look for first."""
    wrong = len(comparison.deviating)
    if not wrong:
        which = "synchronous strategy" if comparison.asynchronous else "strategy"
        return f"Every {which} gives the result of one device."
    verb = "differs" if wrong == 1 else "differ"
    return f"{wrong} of {len(comparison.judged)} strategies {verb} from one device."


def _header(comparison: Comparison) -> str:
    tiles = "\n".join(
        _tile(comparison, measurement, position)
        for position, measurement in enumerate(comparison.measurements)
    )
    columns = 3 if len(comparison.measurements) in (3, 5, 6) else 4
    return (
        f'<p class="eyebrow">replicax compare: {escape(title(comparison))}</p>\n'
        f"<h1>{escape(headline(comparison))}</h1>\n"
        f'<p class="lead">{escape(verdict(comparison))}</p>\n'
        f'<ul class="tiles" style="--columns:{columns}">\n{tiles}\n</ul>\n{_of_speed(comparison)}'
    )


def _tile(comparison: Comparison, measurement: Measurement, position: int) -> str:
    name = measurement.strategy
    ratio = comparison.speed_ratio(name)
    spread = "the unit" if name == BASELINE else f"{ratio.low:.2f}× to {ratio.high:.2f}×"
    last = measurement.epochs[-1]
    return (
        f'<li class="card tile" style="--c:{_colour(position)}"><h3>{escape(name)}</h3>'
        f"{_badge(comparison, measurement)}"
        f'<span class="figure">{_speed(ratio)} <small>speed</small></span>'
        f'<span class="note">{spread}<br>{last.test_accuracy:.2%} right on test data<br>'
        f"{counted(measurement.replicas, 'replica')}</span></li>"
    )


def _speed(ratio: Interval) -> str:
    return f"{ratio.median:.2f}×" if ratio.is_clear else "unclear"


def _badge(comparison: Comparison, measurement: Measurement) -> str:
    if measurement.strategy == BASELINE:
        return '<span class="badge plain">the reference</span>'
    if measurement.weight_difference is None:
        return '<span class="badge plain">asynchronous</span>'
    if measurement.strategy in comparison.on_cpu_alone:
        return '<span class="badge plain">on the CPU</span>'
    if measurement in comparison.deviating:
        return f'<span class="badge bad">✗ weights differ by {difference(measurement)}</span>'
    return '<span class="badge">✓ same weights</span>'


def _of_speed(comparison: Comparison) -> str:
    """How to read the speeds on this machine."""
    most = virtual_devices(comparison) or "the most to expect is the number of replicas"
    text = f"Speed: training examples per second, relative to one device; {most}."
    return f'<p class="note">{escape(text)}</p>'


def _results(comparison: Comparison) -> str:
    headers = [header.replace("\n", " ") for header in HEADERS]
    words = [line.partition(": ") for line in caption(comparison)]
    meanings = "".join(f"<dt>{escape(a)}</dt><dd>{escape(b)}</dd>" for a, _, b in words)
    table = html_table(headers, rows(comparison), caption=_ORDER, left=WORDS)
    return f'<div class="card">{table}<dl class="words">{meanings}</dl></div>'


def _accuracy(comparison: Comparison) -> str:
    return (
        f"<p>{escape(_DATA[comparison.settings.dataset])} Equal curves lie on top of each other: "
        f"wide ones below, thin ones above.</p>\n{_legend(comparison)}\n"
        '<div class="pair">'
        + _plot(plots.svg(plots.accuracy_by_epoch, comparison), "After each epoch.")
        + _plot(
            plots.svg(plots.accuracy_by_seconds, comparison),
            "Against the time since the strategy was made. A triangle is the end of the first "
            "step, when its program is compiled; a program that was compiled before is not "
            "compiled again. The time of tests is left out.",
        )
        + "</div>"
    )


def _throughput(comparison: Comparison) -> str:
    alone = (
        f" {MULTI_WORKER} was timed after the others, in processes of its own."
        if MULTI_WORKER in comparison.settings.strategies
        else ""
    )
    if comparison.on_cpu_alone:
        alone += f" {', '.join(comparison.on_cpu_alone)} {beside_accelerators(comparison)}."
    return _plot(
        plots.svg(plots.throughput, comparison),
        f"Each point is one timed round of {comparison.examples_per_round:,} examples, the line "
        "their median. The strategies take turns, so that a slow spell of the machine meets all "
        f"alike.{alone}",
    )


def _scaling(comparison: Comparison) -> str:
    ratios = comparison.speed_by_replicas()
    if not ratios:
        return '<p class="note">Mirrored training on several devices was not measured.</p>'
    shares = comparison.machine.shares_cores
    ideal = "1, since all of them share one CPU" if shares else "the number of replicas"
    table = html_table(
        ("replicas", "times one device", "efficiency"),
        [
            (
                str(n),
                with_spread(ratio) if n > 1 else "1",
                f"{ratio.median / (1 if shares else n):.0%}" if ratio.is_clear else "unclear",
            )
            for n, ratio in ratios.items()
        ],
        caption="Mirrored training; median, lowest and highest",
        left=0,
    )
    return (
        '<div class="pair">'
        + _plot(
            plots.svg(plots.efficiency, comparison),
            "Throughput of mirrored training with the same batches of "
            f"{comparison.settings.batch_size} rows, relative to one device and divided by the "
            f"ideal: {ideal}. Bars show lowest to highest.",
        )
        + f'<div class="card">{table}</div></div>'
    )


def _verification(comparison: Comparison) -> str:
    text = (
        "After the whole training, from the same weights, on the same batches. Rounding leaves "
        f"1e-6 to 1e-5, a wrong reduction 1e-2 and more; the limit is {WEIGHT_LIMIT:.0e}."
    )
    return (
        f'<div class="pair">{_plot(plots.svg(plots.differences, comparison), text)}</div>'
        '<p class="note"><code>replicax verify train.py</code> does this with a program of yours: '
        "step by step, with every gradient, and with the likely cause.</p>"
    )


def _environment(comparison: Comparison) -> str:
    table = html_table(
        ("", ""), machine_rows(comparison.machine), caption="The machine and its software", left=2
    )
    return f'<div class="card">{table}</div>'


def _again(comparison: Comparison) -> str:
    devices = comparison.settings.replicas or len(comparison.machine.devices)
    command = replace(comparison.settings, replicas=devices).command()
    return (
        f"<p>It took {comparison.seconds:.0f} seconds. The same weights and batches come again, "
        "and with the same versions on the same kind of machine the same accuracies; times do "
        "not.</p>\n"
        f"<pre><code>{escape(command)}</code></pre>"
    )


def _plot(svg: str, text: str) -> str:
    return f'<figure class="card">{svg}<figcaption>{escape(text)}</figcaption></figure>\n'


def _legend(comparison: Comparison) -> str:
    items = "".join(
        f'<li><span class="swatch" style="--c:{_colour(position)}"></span>{escape(m.strategy)}</li>'
        for position, m in enumerate(comparison.measurements)
    )
    return f'<ul class="legend" aria-label="Colours of the strategies">{items}</ul>'


def _colour(position: int) -> str:
    return f"var(--s{position % 6})"
