"""Throughput figures of `fit`: snapshots of counts, and the rates between two snapshots.

The step functions of steps.py count, and `callback_list.py` shows the figures. `WorkerStats` has a
strategy's counts of its workers.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import final

_LARGEST_SHARE = 0.99  # of the time in which workers wait: more is a measurement error


@final
@dataclass(frozen=True)
class WorkerStats:
    """Counts of the workers and servers of a strategy, which only grow."""

    lateness: Sequence[float] = ()  # the seconds that the others have waited for each worker
    # For each worker of parameter servers, the number of its closures, and their seconds.
    closures: Mapping[int, tuple[int, float]] = field(default_factory=dict)
    # For each lateness in updates, the number of gradients.
    staleness: Mapping[int, int] = field(default_factory=dict)
    depths: tuple[int, int] = (0, 0)  # scheduled closures; the sum of unfinished ones each time
    unfinished: int = 0  # closures; the only number here that can fall


@final
@dataclass(frozen=True)
class Snapshot:
    """The counts at a moment."""

    seconds: float  # the moment
    steps: int = 0
    rows: int = 0
    waited: float = 0.0  # seconds in which the devices were idle because a batch was late
    members: WorkerStats = WorkerStats()


@final
@dataclass(frozen=True)
class Figures:
    """Figures of training; None for those that do not apply or are not known yet."""

    examples_per_second: float | None = None  # rows of all replicas and workers
    data_wait: float | None = None  # the share of time in which devices were idle without a batch
    slowest_worker: int | None = None
    # By how much it lengthens the steps; with parameter servers: its closures, to the others'.
    slowest_factor: float | None = None
    staleness: float | None = None  # the mean lateness of gradients, in updates
    queue_depth: float | None = None  # the mean number of unfinished closures at each `schedule`

    def known(self) -> dict[str, float]:
        """The figures that are not None, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def __str__(self) -> str:
        said = {
            "examples_per_second": lambda rate: f"{_short(rate)} ex/s",
            "data_wait": lambda share: f"input {100 * share:.0f} %",
            "slowest_worker": lambda worker: f"slowest worker {worker}",
            "slowest_factor": lambda factor: f"×{factor:.1f}",
            "staleness": lambda updates: f"staleness {updates:.1f}",
            "queue_depth": lambda closures: f"queue {closures:.1f}",
        }
        line = " · ".join(said[name](value) for name, value in self.known().items())
        return line.replace(" · ×", " ×")


def between(before: Snapshot, after: Snapshot) -> Figures:
    seconds = after.seconds - before.seconds
    steps, rows = after.steps - before.steps, after.rows - before.rows
    if steps <= 0 or seconds <= 0:
        return Figures()
    then, now = before.members, after.members
    slowest, factor = (
        _slowest_late(then, now, seconds) if now.lateness else _slowest_long(then, now)
    )
    return Figures(
        examples_per_second=rows / seconds if rows else None,
        data_wait=min((after.waited - before.waited) / seconds, 1.0),
        slowest_worker=slowest,
        slowest_factor=factor,
        staleness=_mean_staleness(then, now),
        queue_depth=_mean_depth(then, now),
    )


def _slowest_late(then: WorkerStats, now: WorkerStats, seconds: float) -> tuple[int, float]:
    """The worker that the others wait for longest, and the factor that this costs."""
    before = then.lateness or [0.0] * len(now.lateness)
    late = [b - a for a, b in zip(before, now.lateness, strict=True)]
    slowest = max(range(len(late)), key=late.__getitem__)
    return slowest, 1 / (1 - min(late[slowest] / seconds, _LARGEST_SHARE))


def _slowest_long(then: WorkerStats, now: WorkerStats) -> tuple[int, float] | tuple[None, None]:
    """The worker with the slowest closures, and how many times slower than the median."""
    means: dict[int, float] = {}
    for worker, (count, seconds) in now.closures.items():
        before, before_seconds = then.closures.get(worker, (0, 0.0))
        if count > before:
            means[worker] = (seconds - before_seconds) / (count - before)
    if len(means) < 2:
        return None, None
    slowest = max(means, key=means.__getitem__)
    others = statistics.median(mean for worker, mean in means.items() if worker != slowest)
    return slowest, means[slowest] / others


def _mean_staleness(then: WorkerStats, now: WorkerStats) -> float | None:
    # A restarted server counts from 0.
    new = {late: max(n - then.staleness.get(late, 0), 0) for late, n in now.staleness.items()}
    count = sum(new.values())
    return sum(late * n for late, n in new.items()) / count if count else None


def _mean_depth(then: WorkerStats, now: WorkerStats) -> float | None:
    (count, others), (before, others_before) = now.depths, then.depths
    return (others - others_before) / (count - before) if count > before else None


def _short(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"
