"""The metrics of workers: their names, and how they are written and read as Prometheus' text."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

#: A name, and pairs of a label and its value.
Series = tuple[str, tuple[tuple[str, str], ...]]
Samples = dict[Series, float]

#: In place of a file: to standard error between two marks, for a launcher on another machine.
TO_STDERR = "-"
MARK = b"\x1ereplicax\x1e"

UP = "replicax_worker_up"
EXIT_CODE = "replicax_worker_exit_code"
RESTARTS = "replicax_worker_restarts_total"
INFO = "replicax_worker_info"
REPORTED = "replicax_last_report_timestamp_seconds"
STEPS = "replicax_steps_total"
STEP_RATE = "replicax_steps_per_second"
EXAMPLES = "replicax_examples_total"
EXAMPLE_RATE = "replicax_examples_per_second"
WAITED = "replicax_waited_seconds_total"
WAITED_RATIO = "replicax_waited_ratio"
CLOSURES = "replicax_closures_total"
CLOSURE_SECONDS = "replicax_closure_seconds_total"
STALENESS = "replicax_staleness_updates"
QUEUED = "replicax_queued_closures"

#: The metrics that a worker loses when it ends.
OF_NOW = (STEP_RATE, EXAMPLE_RATE, WAITED_RATIO, QUEUED)

METRICS = {
    UP: ("gauge", "1 while the process of the worker runs, 0 when it has ended."),
    EXIT_CODE: ("gauge", "How its latest process ended; -N for signal N."),
    RESTARTS: ("counter", "How many times it was started again."),
    INFO: ("gauge", "1; the labels name the host and the process."),
    REPORTED: ("gauge", "When the worker last reported, in seconds since 1970."),
    STEPS: ("counter", "Steps: batches of fit; else calls of run and of rx.function."),
    STEP_RATE: ("gauge", "Steps per second, over the last ten seconds."),
    EXAMPLES: ("counter", "Examples: the worker's part of the rows of all batches."),
    EXAMPLE_RATE: ("gauge", "Examples per second, over the last ten seconds."),
    WAITED: ("counter", "Seconds in which the worker waited for other workers."),
    WAITED_RATIO: ("gauge", "The same, as a part (0 to 1) of the last ten seconds."),
    CLOSURES: ("counter", "Closures that the worker has run for parameter servers."),
    CLOSURE_SECONDS: ("counter", "Seconds in which it ran them."),
    STALENESS: ("summary", "How many updates gradients were late at the parameter servers."),
    QUEUED: ("gauge", "Scheduled closures that have not ended."),
}

_LINE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? +([-+.0-9a-zA-Z]+)( +[0-9]+)?$", re.A | re.M)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"', re.ASCII)
_ESCAPED = {"\\": r"\\", "\n": r"\n", '"': r"\""}
_UNESCAPED = {escaped: plain for plain, escaped in _ESCAPED.items()}


def series(name: str, **labels: Any) -> Series:
    return name, tuple((label, str(value)) for label, value in labels.items())


def write(samples: Mapping[Series, float]) -> str:
    """Samples in Prometheus' text format, version 0.0.4."""
    lines: list[str] = []
    for name, (kind, text) in METRICS.items():
        names = (f"{name}_sum", f"{name}_count") if kind == "summary" else (name,)
        found = [_line(one, value) for one, value in samples.items() if one[0] in names]
        if found:
            lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}", *found]
    return "".join(f"{line}\n" for line in lines)


def read(text: str) -> Samples:
    """The samples of a text; lines that are none are skipped."""
    found: Samples = {}
    for line in _LINE.finditer(text):
        name, labels, value, _ = line.groups()
        pairs = tuple((label, _plain(content)) for label, content in _LABEL.findall(labels or ""))
        with suppress(ValueError):
            found[name, pairs] = float(value)
    return found


def replace(path: Path, text: str) -> None:
    """Give a file a new text; whoever reads it meanwhile has the old one or the new one."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)


def _line(one: Series, value: float) -> str:
    name, pairs = one
    labels = ",".join(f'{label}="{_escaped(content)}"' for label, content in pairs)
    number = f"{value:.0f}" if float(value).is_integer() else repr(value)
    return f"{name}{{{labels}}} {number}" if labels else f"{name} {number}"


def _escaped(text: str) -> str:
    return "".join(_ESCAPED.get(character, character) for character in text)


def _plain(text: str) -> str:
    return re.sub(r"\\.", lambda found: _UNESCAPED.get(found[0], found[0]), text)
