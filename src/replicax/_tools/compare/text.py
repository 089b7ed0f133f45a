"""A comparison as text, JSON and a folder of files."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from replicax._core.errors import needs
from replicax._core.folder import named
from replicax._tools.compare.result import WEIGHT_LIMIT, Comparison, Interval, Measurement
from replicax._tools.compare.settings import BASELINE, MULTI_WORKER
from replicax._tools.machine import Machine, busy_machine, name_range
from replicax._tools.text import aligned, as_json, counted, make_folder, wrapped

if TYPE_CHECKING:
    from pathlib import Path
    from types import ModuleType


HEADERS = (
    "strategy",
    "variables\nlive on",
    "replicas",
    "test\nloss",
    "test\naccuracy",
    "weight\ndifference",
    "first\nstep (s)",
    "examples\n/ s",
    "times one\ndevice",
)
WORDS = 2  # the first columns hold words


def to_text(comparison: Comparison) -> str:
    """The table with its caption, for a terminal."""
    table = aligned(HEADERS, rows(comparison), left=WORDS)
    return "\n\n".join([title(comparison), table, "\n".join(map(wrapped, caption(comparison)))])


def to_json(comparison: Comparison) -> str:
    """All measurements, each raw timing included, with what follows from them under `summary`."""
    data = asdict(comparison) | {
        "baseline": BASELINE,
        "weight_limit": WEIGHT_LIMIT,
        "summary": {
            m.strategy: {
                "examples_per_second": asdict(comparison.examples_per_second(m.strategy)),
                "speed_ratio": asdict(comparison.speed_ratio(m.strategy)),
            }
            for m in comparison.measurements
        },
    }
    return as_json(data)


def verdict(comparison: Comparison) -> str:
    """Whether every strategy ended with the weights of one device, or with its accuracy."""
    if not comparison.deviating:
        those = "synchronous strategy" if comparison.asynchronous else "strategy"
        largest = comparison.largest_difference
        same = (
            f"Every {those} ended with the weights of one device "
            f"(largest relative difference {largest:.1e}, limit {WEIGHT_LIMIT:.0e})."
        )
        return " ".join([same, *asynchrony(comparison)])
    worst = "; ".join(
        f"{m.strategy} differs by {m.weight_difference:.1e} in {m.differing_weight}"
        for m in comparison.deviating
    )
    return (
        f"Not every strategy ended with the weights of one device: {worst}; the limit is "
        f"{WEIGHT_LIMIT:.0e}. All had the same initial weights and batches, so only rounding may "
        "differ. Rounding grows over a long training: try fewer epochs. If the difference stays, "
        "this is a bug of Replicax; please report it with compare.json."
    )


def asynchrony(comparison: Comparison) -> list[str]:
    """For each asynchronous strategy, a sentence on how it is compared."""
    reference = comparison.measurement(BASELINE).epochs[-1].test_accuracy
    return [
        f"{m.strategy} is asynchronous: no two of its runs are equal, so it is compared by its "
        f"accuracy, {m.epochs[-1].test_accuracy:.2%} on test data; one device has {reference:.2%}."
        for m in comparison.asynchronous
    ]


def machine_rows(machine: Machine) -> list[tuple[str, str]]:
    kinds = ", ".join(dict.fromkeys(device.kind for device in machine.devices))
    devices = f"{name_range(device.name for device in machine.devices)} ({kinds})"
    return [
        ("system", machine.system),
        ("processor", machine.processor),
        ("cores", str(machine.cores)),
        ("memory", gibibytes(machine.memory_bytes)),
        ("devices", devices),
        *machine.versions.items(),
        *machine.variables.items(),
    ]


def gibibytes(count: int | None) -> str:
    """A number of bytes in GiB."""
    return "unknown" if count is None else f"{count / 2**30:.1f} GiB"


def placement(devices: tuple[str, ...]) -> str:
    """Where variables live, in a few words."""
    return name_range(devices) + (" each" if len(devices) > 1 else "")


def title(comparison: Comparison) -> str:
    """Model, data and settings, on one line."""
    settings = comparison.settings
    return (
        f"{settings.model} ({comparison.parameters:,} parameters) on {settings.dataset}: "
        f"{comparison.train_examples} examples, {counted(settings.epochs, 'epoch')}, "
        f"batches of {settings.batch_size}, seed {settings.seed}, float32"
    )


def rows(comparison: Comparison) -> list[list[str]]:
    return [_row(comparison, measurement) for measurement in comparison.measurements]


def _row(comparison: Comparison, measurement: Measurement) -> list[str]:
    last = measurement.epochs[-1]
    ratio = comparison.speed_ratio(measurement.strategy)
    return [
        measurement.strategy,
        placement(measurement.variable_devices),
        str(measurement.replicas),
        f"{last.test_loss:.4f}",
        f"{last.test_accuracy:.2%}",
        difference(measurement),
        f"{measurement.first_step_seconds:.1f}",
        f"{comparison.examples_per_second(measurement.strategy).median:,.0f}",
        with_spread(ratio) if measurement.strategy != BASELINE else "1",
    ]


def difference(measurement: Measurement) -> str:
    """The difference of weights; a plain 0 where every bit is equal."""
    if measurement.weight_difference is None:
        return "by accuracy"
    return f"{measurement.weight_difference:.1e}" if measurement.weight_difference else "0"


def with_spread(ratio: Interval) -> str:
    """A ratio with its lowest and highest value; without the ratio if these are far apart."""
    median = f"{ratio.median:.2f}" if ratio.is_clear else "unclear"
    return f"{median} ({ratio.low:.2f}-{ratio.high:.2f})"


def caption(comparison: Comparison) -> list[str]:
    """The legend of the table's columns."""
    repeats = comparison.settings.repeats
    examples = f"{comparison.examples_per_round:,}"
    lines = {
        "weight difference": "max |w - w1| / max |w1| of the array of weights w where it is "
        f"largest, w1 being the same array after training with {BASELINE}",
        "first step": "seconds from creating the strategy, with building and compiling",
        "examples / s": f"median of {counted(repeats, 'timed round')} of {examples} examples each, "
        "in which the strategies take turns",
        "times one device": f"median (lowest to highest) ratio to {BASELINE} in the same round",
    }
    if MULTI_WORKER in comparison.settings.strategies:
        lines[MULTI_WORKER] = "timed after the others, not in turn: its processes are its own"
    if alone := one_accelerator(comparison) or virtual_devices(comparison):
        lines["replicas"] = alone
    if comparison.on_cpu_alone:
        lines[", ".join(comparison.on_cpu_alone)] = beside_accelerators(comparison)
    if unclear := unclear_ratios(comparison):
        lines["unclear"] = unclear
    if busy := busy_machine(comparison.busy_cores):
        lines["busy machine"] = busy
    return [f"{name}: {meaning}" for name, meaning in lines.items()]


def virtual_devices(comparison: Comparison) -> str:
    """A note on devices that are one CPU; empty for others."""
    machine = comparison.machine
    if not machine.shares_cores or len(machine.devices) == 1:
        return ""
    shared = counted(machine.cores, "core")
    return (
        f"{len(machine.devices)} virtual devices of one CPU, of which one device already uses "
        f"{'the' if machine.cores == 1 else 'all'} {shared}: several replicas cannot be faster "
        "than one here. On accelerators the most is the number of replicas"
    )


def unclear_ratios(comparison: Comparison) -> str:
    """A note on ratios that say nothing; empty if all are clear."""
    if all(comparison.speed_ratio(m.strategy).is_clear for m in comparison.measurements):
        return ""
    return (
        "its rounds are more than a factor of 5 apart, so that their ratio says nothing. Run "
        "again with nothing else running, or with more --repeats"
    )


def one_accelerator(comparison: Comparison) -> str:
    """A note on what one accelerator cannot show; empty where there are more, or none."""
    machine = comparison.machine
    if machine.shares_cores or len(machine.devices) > 1:
        return ""
    where = name_range(device.name for device in machine.devices)
    return (
        f"one, on {where}: nothing is exchanged here, and a ratio near 1 is all that can be "
        "expected; how training scales needs a second accelerator"
    )


def beside_accelerators(comparison: Comparison) -> str:
    """A note on strategies that computed on the CPU while others used accelerators."""
    kinds = dict.fromkeys(device.platform.upper() for device in comparison.machine.devices)
    return (
        f"computed on the CPU, the others on {' and '.join(kinds)}, which several processes cannot "
        "share: neither speed nor weights can be compared with theirs"
    )


PAGE = "report.html"


def save(comparison: Comparison, folder: str | Path) -> tuple[Path, ...]:
    """Write report.html and compare.json.

    The folder is made if it is not there; files of these names are replaced.
    """
    page, place = drawing(), make_folder(folder)
    html, raw = place / PAGE, place / "compare.json"
    with named(place):
        html.write_text(page.to_html(comparison), encoding="utf-8")
        raw.write_text(to_json(comparison), encoding="utf-8")
    return html, raw


def drawing() -> ModuleType:
    """The module that makes the page."""
    with needs("Drawing a comparison", extra="report"):
        from replicax._tools.compare import page
    return page
