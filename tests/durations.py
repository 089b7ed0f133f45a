"""Keep the fast tier fast: write tests/slow.txt from the durations of a full run, or check a run.

    python tests/durations.py write FILE...    list the functions of which a case took long
    python tests/durations.py check FILE...    name unlisted tests that took long; fail on the sum

`pytest --durations-file FILE` writes the files. A test takes as long as it computes, or as it
waits: on a busy machine, where each waits for the others too, the seconds of the clock count by
the part of them that all tests of the run computed. Where the listed tests take longer than when
they were listed, the machine is slower, and others may take longer, too. A single test may be slow
by chance, so only the sum of the tier fails the check.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path

from tiers import (
    FAST_TIER_AT_MOST,
    LIST,
    LISTED_FROM,
    UNLISTED_AT_MOST,
    Case,
    function_of,
    is_slow_by_folder,
    listed,
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("do", choices=["write", "check"])
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    chosen = parser.parse_args()
    cases = [case for file in chosen.files for case in read(file)]
    if chosen.do == "write":
        write(cases)
        return 0
    return check(cases)


def read(file: Path) -> list[Case]:
    """Return the cases of a run, with the seconds that they take on a machine that is not busy."""
    cases = [Case(*case) for case in json.loads(file.read_text() or "[]")]
    computed = sum(case.cpu_seconds for case in cases)
    share = min(1.0, computed / (sum(case.seconds for case in cases) or 1.0))
    return [case._replace(seconds=max(case.cpu_seconds, case.seconds * share)) for case in cases]


def longest(cases: list[Case]) -> dict[str, float]:
    """Return the seconds of the longest case of each function."""
    seconds: dict[str, float] = {}
    for case in cases:
        function = function_of(case.name)
        seconds[function] = max(case.seconds, seconds.get(function, 0.0))
    return seconds


def write(cases: list[Case]) -> None:
    """List each function of which a case took `LISTED_FROM` seconds, unless its folder is slow."""
    slow = {
        function: seconds
        for function, seconds in sorted(longest(cases).items())
        if seconds >= LISTED_FROM and not is_slow_by_folder(function)
    }
    LIST.write_text("".join(f"{name} {seconds:.1f}\n" for name, seconds in slow.items()))
    print(f"{LIST.name}: {len(slow)} functions")


def check(cases: list[Case]) -> int:
    """Name the unlisted tests that took long, and return 1 if the fast tier takes too long."""
    slow, now = listed(), longest(cases)
    ratios = [now[function] / slow[function] for function in slow.keys() & now.keys()]
    pace = max(1.0, statistics.median(ratios or [1.0]))
    fast = [case for case in cases if case.is_fast]
    total, limit = sum(case.seconds for case in fast), UNLISTED_AT_MOST * pace
    print(
        f"fast tier: {len(fast)} tests, {total / 60:.1f} core-minutes; listed tests took "
        f"{pace:.2f} times as long as when they were listed"
    )
    for case in fast:
        function = function_of(case.name)
        if case.seconds > limit and not is_slow_by_folder(function) and function not in slow:
            print(f"{case.name} took {case.seconds:.1f} s; `make durations` lists slow tests anew")
    if total > FAST_TIER_AT_MOST * pace:
        print(
            f"the fast tier took more than {FAST_TIER_AT_MOST * pace / 60:.0f} core-minutes; "
            "`make durations` lists slow tests anew",
            file=sys.stderr,
        )
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
