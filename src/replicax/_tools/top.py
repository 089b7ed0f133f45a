"""`replicax top`: the workers of a run as a table that moves, from what `--metrics` gives."""

from __future__ import annotations

import os
import sys
import time
import urllib.request
from collections import defaultdict
from collections.abc import Mapping
from http.client import HTTPException
from pathlib import Path
from signal import SIGTERM
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from replicax._core.errors import ClusterError
from replicax._processes import prometheus
from replicax._processes.metrics import Target
from replicax._processes.rules import PREEMPTED

_APART = 1.0
_PATIENCE = 5.0
_SILENT_SECONDS = 10.0
_FAILURES = 3  # a busy machine may answer late; a port that is closed refuses at once
_DIRECTLY = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_WIDTH = 100  # where there is no terminal
# By exit code. SIGTERM is how parameter servers and their workers are ended.
_ENDS = {0: "ended", PREEMPTED: "preempted", -SIGTERM: "terminated", 128 + SIGTERM: "terminated"}


def show(source: str, *, once: bool) -> int:
    """Show the workers; return the exit code."""
    target, is_terminal = Target.of(source), sys.stdout.isatty()
    console = Console(width=None if is_terminal else _WIDTH, highlight=False, markup=False)
    workers = by_worker(_read(target))
    if once or not is_terminal:
        console.print(table(workers))
        return 0
    failures = 0
    with Live(table(workers), console=console, auto_refresh=False) as live:
        while failures < _FAILURES and not _is_old(target.file):
            time.sleep(_APART)
            try:
                workers, failures = by_worker(_read(target)), 0
            except ClusterError:
                failures += 1
            live.update(table(workers), refresh=True)
    console.print("The run has ended.")
    return 0


def _is_old(file: str) -> bool:
    """Whether a file is not written any more; a port is closed when the run ends."""
    return bool(file) and time.time() - os.path.getmtime(file) > _SILENT_SECONDS


def _read(target: Target) -> prometheus.Samples:
    where = target.place
    try:
        if target.file:
            text = Path(target.file).read_text(encoding="utf-8")
        else:
            with _DIRECTLY.open(target.place, timeout=_PATIENCE) as answered:
                text = answered.read().decode()
    except (OSError, ValueError, HTTPException) as error:
        why = getattr(error, "reason", error)
        raise ClusterError(
            f"No metrics in {where}: {getattr(why, 'strerror', None) or why}. Start the run by "
            f"`replicax run --metrics {target.argument} …`. See docs/monitoring.md."
        ) from error
    found = prometheus.read(text)
    if not any(name.startswith("replicax_") for name, _ in found):
        raise ClusterError(
            f"No metrics of workers in {where} yet. Name what `--metrics` was given, or wait until "
            "the first worker has started."
        )
    return found


def by_worker(samples: prometheus.Samples) -> dict[str, dict[str, Any]]:
    """The metrics of each worker, by name; the labels of its info metric are names, too."""
    found: dict[str, dict[str, Any]] = defaultdict(dict)
    for (name, pairs), value in samples.items():
        labels = dict(pairs)
        worker = labels.pop("worker", "0")
        found[worker] |= labels if name == prometheus.INFO else {name: value}
    return dict(sorted(found.items(), key=lambda one: (len(one[0]), one[0])))


def is_up(worker: Mapping[str, Any]) -> bool:
    """Whether it runs; one that no `replicax run` has started, if it has reported lately."""
    silent = time.time() - worker.get(prometheus.REPORTED, 0.0) > _SILENT_SECONDS
    return bool(worker.get(prometheus.UP, not silent))


def state(worker: Mapping[str, Any]) -> str:
    if not is_up(worker):
        code = worker.get(prometheus.EXIT_CODE)
        if code is None:
            return "silent"
        return _ENDS.get(code, f"failed ({code:.0f})")
    if not worker.get(prometheus.STEPS):
        return "running"
    return "training" if worker[prometheus.STEP_RATE] else "idle"


def table(workers: Mapping[str, Mapping[str, Any]]) -> Table:
    """A line for each worker; below them, how parameter servers get on."""
    queued = sum(one.get(prometheus.QUEUED, 0) for one in workers.values())
    late = [sum(one.get(f"{prometheus.STALENESS}_{part}", 0) for one in workers.values())
            for part in ("sum", "count")]  # fmt: skip
    figures = [f"staleness {late[0] / late[1]:.1f}"] if late[1] else []
    if any(prometheus.QUEUED in one for one in workers.values()):
        figures.append(f"queue {queued:.0f}")
    shown = Table(
        box=None, pad_edge=False, caption=" · ".join(figures) or None, caption_justify="left"
    )
    shown.add_column("worker")
    shown.add_column("host")
    for name in ("pid", "state", "step", "examples/s", "waited", "restarts"):
        shown.add_column(name, justify="left" if name == "state" else "right")
    for name, one in workers.items():
        step, rate = (
            one.get(prometheus.STEPS, one.get(prometheus.CLOSURES)),
            one.get(prometheus.EXAMPLE_RATE),
        )
        waited, restarts = one.get(prometheus.WAITED_RATIO), one.get(prometheus.RESTARTS)
        shown.add_row(
            name,
            one.get("host", ""),
            one.get("pid", ""),
            state(one),
            "" if step is None else f"{step:,.0f}",
            f"{rate:,.0f}" if rate else "",
            "" if waited is None else f"{waited:.0%}",
            "" if restarts is None else f"{restarts:.0f}",
        )
    return shown
