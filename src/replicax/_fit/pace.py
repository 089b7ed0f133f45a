"""How `fit` gets on: what its steps note as they go, and the figures that follow from that.

Nobody waits here: a step costs some readings of the clock. `_fit/callback_list.py` shows the
figures; what a strategy knows of its workers comes from `Members`.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from time import perf_counter as clock
from typing import Any, final

from replicax._control import current

_LARGEST_SHARE = 0.99  # of the time for which workers wait: more would be an error of measurement


@final
@dataclass(frozen=True)
class Members:
    """What a strategy knows of its workers and servers so far: numbers that only grow.

    Args:
        lateness: For each worker of a synchronous strategy, for how many seconds the others have
            waited for it.
        closures: How many closures each worker has run for parameter servers, and for how long.
        staleness: How many gradients were how many updates late.
        depths: How many closures were scheduled, and how many others had not ended then, in sum.
        unfinished: How many closures have not ended now.
    """

    lateness: Sequence[float] = ()
    closures: Mapping[int, tuple[int, float]] = field(default_factory=dict)
    staleness: Mapping[int, int] = field(default_factory=dict)
    depths: tuple[int, int] = (0, 0)
    unfinished: int = 0


@final
@dataclass(frozen=True)
class Count:
    """What was done up to a moment.

    Args:
        seconds: The moment.
        steps: How many steps.
        rows: How many rows they had.
        waited: For how many seconds the devices had nothing to do, because a batch had not come.
        members: What the strategy knows.
    """

    seconds: float
    steps: int = 0
    rows: int = 0
    waited: float = 0.0
    members: Members = Members()


@final
@dataclass(frozen=True)
class Figures:
    """How training gets on; None is what does not exist here, or is not known yet.

    Args:
        examples_per_second: Rows of all replicas and workers.
        data_wait: The share of the time, 0 to 1, in which a batch was waited for and the devices
            of this process had nothing else to do.
        slowest_worker: Its number.
        slowest_factor: How many times as long a step takes as it would if the slowest worker were
            as quick as the others; with parameter servers, as long as those of other workers.
        staleness: How many updates a gradient was late on average.
        queue_depth: How many closures had not ended when another one was scheduled, on average.
    """

    examples_per_second: float | None = None
    data_wait: float | None = None
    slowest_worker: int | None = None
    slowest_factor: float | None = None
    staleness: float | None = None
    queue_depth: float | None = None

    def known(self) -> dict[str, float]:
        """Those that there are, by name."""
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


def between(before: Count, after: Count) -> Figures:
    """The figures of the time between two counts."""
    seconds = after.seconds - before.seconds
    steps, rows = after.steps - before.steps, after.rows - before.rows
    if steps <= 0 or seconds <= 0:
        return Figures()
    then, now = before.members, after.members
    slowest, factor = _late(then, now, seconds) if now.lateness else _long(then, now)
    return Figures(
        examples_per_second=rows / seconds if rows else None,
        data_wait=min((after.waited - before.waited) / seconds, 1.0),
        slowest_worker=slowest,
        slowest_factor=factor,
        staleness=_mean_staleness(then, now),
        queue_depth=_depth(then, now),
    )


@final
class Pace:
    """The counts of one model's training; its step function and its callbacks write them."""

    def __init__(self) -> None:
        self.members: Callable[[], Members] = Members
        self.others: Callable[[], float] | None = None  # seconds in which workers were waited for
        self.heard: Callable[[], None] | None = None  # called behind each step
        self.steps = 0  # of all epochs
        self._log: Any = None
        self._ending: threading.Thread | None = None
        self.begin()

    def begin(self) -> None:
        """An epoch begins."""
        if self._ending is not None:
            self._ending.join()  # it has ended before the last validation did
        self._start: Count | None = None
        self._end: Count | None = None
        self._ending = None
        self._steps = self._rows = 0
        self._waited = 0.0
        self._marked = (0, 0, 0.0)

    def take(self, iterator: Iterator[Any], wanted: int) -> list[Any]:
        """The next batches of an iterator: as many, or as are left; StopIteration for none."""
        begin, others = clock(), self.others() if self.others else 0.0
        batches = [next(iterator), *itertools.islice(iterator, wanted - 1)]
        # While there is something else to compute, nothing is lost.
        if self._start is not None and not self._is_busy():
            waited = clock() - begin
            if self.others:
                waited = max(waited - (self.others() - others), 0.0)
            self._waited += waited
        return batches

    def _is_busy(self) -> bool:
        if self._log is not None:
            return not self._log.is_ready()
        return self.members().unfinished > 0

    def did(self, steps: int, rows: int, logs: Any = None) -> None:
        """Note steps that were handed to the devices, or have ended on a worker.

        Args:
            steps: How many.
            rows: How many rows they have; 0 if it is not known.
            logs: What they return.
        """
        while isinstance(logs, dict):
            logs = next(iter(logs.values()), None)
        self._log = logs if hasattr(logs, "is_ready") else None
        self.steps += steps
        if self._start is None:  # the first one is compiled: what comes behind it counts
            self._start = Count(clock(), members=self.members())
        else:
            self._steps += steps
            self._rows += rows
        if self.heard is not None:
            self.heard()

    def mark(self) -> None:
        """What was done up to here is what is shown next, once the logs of this step are there."""
        self._marked = self._steps, self._rows, self._waited

    def end(self) -> None:
        """The steps of the epoch are all begun; they may not have ended."""
        if self._start is None or self._end is not None or self._ending is not None:
            return
        self.mark()
        if self._log is None or self._log.is_ready():
            self._end = self.count()
            return
        # Validation goes on behind them on the devices: to wait here would leave those idle.
        ending = threading.Thread(target=self._end_later, args=(self._log,), daemon=True)
        ending.start()
        self._ending = ending  # the bar's thread may join it from now on

    def count(self) -> Count:
        """What was marked, as of now."""
        return Count(clock(), *self._marked, self.members())

    def figures(self) -> Figures:
        """Those of the epoch, up to the last mark, or to its end."""
        if self._ending is not None:
            self._ending.join()
        return Figures() if self._start is None else between(self._start, self._end or self.count())

    def _end_later(self, log: Any) -> None:
        with contextlib.suppress(Exception):  # of a step that failed, which the main thread meets
            log.block_until_ready()
        self._end = self.count()


def pace_of(model: Any) -> Pace:
    """The pace of a model's training; the model keeps it, because it may hold the model."""
    pace = getattr(model, "_replicax_pace", None)
    if pace is None:
        pace = Pace()
        object.__setattr__(model, "_replicax_pace", pace)
    return pace


def paced(model: Any, kind: str, distribution: Any) -> Pace:
    """What the step function of a model counts by; only that of training is looked at."""
    pace = pace_of(model) if kind == "train" else Pace()
    closures = distribution.engine.closures
    if closures is not None:
        pace.members = closures.members
    elif distribution.topology.num_processes > 1:
        pace.members = lambda: Members(lateness=current().lateness())
        pace.others = lambda: current().waited()
    return pace


def rows_of(batch: Any) -> int:
    """How many rows a batch has; 0 if it is not known."""
    while isinstance(batch, (tuple, list, dict)):
        batch = next(iter(batch.values() if isinstance(batch, dict) else batch), None)
    return batch.shape[0] if getattr(batch, "ndim", 0) else 0


def _late(then: Members, now: Members, seconds: float) -> tuple[int, float]:
    """For which worker the others wait longest, and what that costs."""
    before = then.lateness or [0.0] * len(now.lateness)
    late = [b - a for a, b in zip(before, now.lateness, strict=True)]
    slowest = max(range(len(late)), key=late.__getitem__)
    return slowest, 1 / (1 - min(late[slowest] / seconds, _LARGEST_SHARE))


def _long(then: Members, now: Members) -> tuple[int, float] | tuple[None, None]:
    """Whose closures take longest, and how many times as long as those of the others."""
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


def _mean_staleness(then: Members, now: Members) -> float | None:
    # A server that came back counts anew.
    new = {late: max(n - then.staleness.get(late, 0), 0) for late, n in now.staleness.items()}
    count = sum(new.values())
    return sum(late * n for late, n in new.items()) / count if count else None


def _depth(then: Members, now: Members) -> float | None:
    (count, others), (before, others_before) = now.depths, then.depths
    return (others - others_before) / (count - before) if count > before else None


def _short(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"
