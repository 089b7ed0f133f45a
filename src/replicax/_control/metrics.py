"""The metrics of this process, if `RX_METRICS_FILE` is set: steps, examples, waiting times.

Once a second a thread replaces that file, with Prometheus' text. Without the variable there is no
thread, and nobody counts.
"""

from __future__ import annotations

import atexit
import os
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, final

from replicax._core import events
from replicax._core.channel import current
from replicax._core.env import pop_metrics_file
from replicax._processes.prometheus import (
    CLOSURE_SECONDS,
    CLOSURES,
    EXAMPLE_RATE,
    EXAMPLES,
    INFO,
    MARK,
    QUEUED,
    REPORTED,
    STALENESS,
    STEP_RATE,
    STEPS,
    TO_STDERR,
    WAITED,
    WAITED_RATIO,
    Samples,
    replace,
    series,
    write,
)

_APART = 1.0
_WINDOW = 10  # reports over which rates are measured
_PIECE = 3000  # bytes that a pipe takes as a whole, with the marks; POSIX promises 4096 on Linux
_ERR = 2


def report(members: Callable[[], Any] | None = None) -> None:
    """Start to report, at the first call of this process, if `RX_METRICS_FILE` is set.

    `members` tells what a coordinator knows of its workers and servers, see `_fit/figures.py`; it
    is a method, whose object is not kept alive.
    """
    if not _reporters and (where := pop_metrics_file()):
        _reporters.append(Reporter(where))
        _reporters[0].start()
    if _reporters and members is not None:
        _reporters[0].members = weakref.WeakMethod(members)


_reporters: list[Reporter] = []


@final
class Reporter:
    """Counts, and writes the counts to a file."""

    def __init__(self, where: str) -> None:
        self.members: Callable[[], Callable[[], Any] | None] = lambda: None
        self._where = where
        self._pid = os.getpid()
        self._totals = events.Totals()
        self._latest: deque[tuple[float, int, int, float]] = deque(maxlen=_WINDOW + 1)
        self._stop = threading.Event()
        self._lock = threading.Lock()

    def start(self) -> None:
        """Count from now on, and report until the process ends."""
        events.totals = self._totals
        self._unlisten = events.listen(self._begun)
        self.write()
        threading.Thread(target=self._run, name="replicax-metrics", daemon=True).start()
        atexit.register(self.stop)

    def stop(self) -> None:
        """Report for the last time, and count no more; a fork of this process reports nothing."""
        self._stop.set()
        if os.getpid() == self._pid:
            self.write()
        self._unlisten()
        atexit.unregister(self.stop)
        events.totals = None

    def write(self) -> None:
        """Report what there is now; what cannot be written is left out."""
        with self._lock, suppress(OSError):
            samples = self._samples()
            if self._where == TO_STDERR:
                for piece in _pieces(write(samples)):
                    os.write(_ERR, MARK + piece + MARK)
            else:
                replace(Path(self._where), write(samples))

    def _run(self) -> None:
        while not self._stop.wait(_APART):
            self.write()

    def _begun(self, doing: str) -> None:
        if doing == "run" or doing.startswith("call of "):  # `fit` counts its own steps
            self._totals.add(1, 0)

    def _samples(self) -> Samples:
        channel = current()
        steps, examples = self._totals.done
        examples //= channel.size  # batches are global; each worker has an equal part
        waited = channel.waited()
        self._latest.append((time.monotonic(), steps, examples, waited))
        (begin, *before), (end, *now) = self._latest[0], self._latest[-1]
        seconds = max(end - begin, 1e-9)
        rates = [(b - a) / seconds for a, b in zip(before, now, strict=True)]
        found = {
            series(INFO, host=socket.gethostname(), pid=self._pid): 1,
            series(REPORTED): time.time(),
            series(STEPS): steps,
            series(STEP_RATE): rates[0],
            series(EXAMPLES): examples,
            series(EXAMPLE_RATE): rates[1],
        }
        if channel.size > 1:
            found |= {series(WAITED): waited, series(WAITED_RATIO): min(rates[2], 1.0)}
        members = self.members()
        return found | (_of_members(members()) if members else {})


def _of_members(known: Any) -> Samples:
    found: Samples = {series(QUEUED): known.unfinished}
    for worker, (count, seconds) in sorted(known.closures.items()):
        found[series(CLOSURES, worker=worker)] = count
        found[series(CLOSURE_SECONDS, worker=worker)] = seconds
    late = known.staleness
    if late:
        found[series(f"{STALENESS}_sum")] = sum(updates * n for updates, n in late.items())
        found[series(f"{STALENESS}_count")] = sum(late.values())
    return found


def _pieces(text: str) -> Iterator[bytes]:
    """The text in pieces of whole lines, each of which a pipe takes at once."""
    piece = b""
    for line in text.encode().splitlines(keepends=True):
        if len(piece) + len(line) > _PIECE:
            yield piece
            piece = b""
        piece += line
    yield piece
