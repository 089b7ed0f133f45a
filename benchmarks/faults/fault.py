"""A fault that is provoked on purpose, and what came of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Outcome:
    """What was observed.

    Args:
        outcome: What happened, in a few words that are the same in every run.
        is_as_expected: Whether it is what Replicax promises; decided by what was observed.
        seconds: From the fault to the notice; None if it is noticed at once.
        named: Which worker, variable or file the message named.
        lost: What was lost.
    """

    outcome: str
    is_as_expected: bool
    seconds: float | None = None
    named: str = ""
    lost: str = "nothing"


@dataclass(frozen=True)
class Fault:
    """A fault, and how to provoke it.

    Args:
        line: Its part of the table, one of `faults.LINES`.
        what: The fault in one short sentence; no two faults have the same.
        try_it: Provokes it, in an empty folder of its own. It ends by itself and leaves no
            process.
        tested_by: The test that does the same to the same program, or the fault that leads to the
            same by the same way, so that no other test tries this; `make faults` does.
    """

    line: str
    what: str
    try_it: Callable[[Path], Outcome]
    tested_by: str = ""
