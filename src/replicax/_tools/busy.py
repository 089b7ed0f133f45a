"""How busy other programs keep the machine while something is measured; imports no JAX."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import final

from replicax._core.env import cores

_BUSY = 0.2  # the part of the cores that others may take


@final
class OtherPrograms:
    """Measures, from when it is made, how many of this process' cores other programs take."""

    def __init__(self) -> None:
        self._began, self._before = time.perf_counter(), _seconds_of_others()

    def cores(self) -> float:
        """Cores taken until now, on the average; children count once they have ended.

        Cores that this process may not use are not counted. 0 where the system does not tell.
        """
        seconds = _seconds_of_others() - self._before
        spared = (os.cpu_count() or 1) - cores()
        return max(0.0, seconds / (time.perf_counter() - self._began) - spared)


def _seconds_of_others() -> float:
    """CPU seconds that other processes of this machine have used."""
    try:
        fields = Path("/proc/stat").read_text(encoding="utf-8").split(maxsplit=9)[1:9]
    except OSError:
        return 0.0
    user, nice, system, _idle, _waiting, *more = map(int, fields)
    ticks = user + nice + system + sum(more)
    return ticks / os.sysconf("SC_CLK_TCK") - sum(os.times()[:4])


def busy_machine(busy_cores: float) -> str:
    """A note on other programs that took cores; empty if none did."""
    if busy_cores <= _BUSY * cores():
        return ""
    return (
        f"other programs took {busy_cores:.1f} of {cores()} cores meanwhile, so times "
        "and ratios say little. Run again when nothing else runs"
    )
