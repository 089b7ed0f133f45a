"""What programs that measure say, and how they end."""

from __future__ import annotations

import signal
import statistics
import sys
from collections.abc import Iterable


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def spread(values: Iterable[float]) -> tuple[float, str]:
    """The median, and the range as text."""
    ordered = sorted(values)
    return statistics.median(ordered), f"{ordered[0]:.3g}–{ordered[-1]:.3g}"


def end_cleanly_on_signals() -> None:
    """SIGTERM and SIGHUP unwind, so that processes of ours are ended, too."""
    for signum in signal.SIGTERM, signal.SIGHUP:
        signal.signal(signum, _end)


def _end(signum: int, _frame: object) -> None:
    raise SystemExit(128 + signum)
