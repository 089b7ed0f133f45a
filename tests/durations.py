"""Keep the fast tier fast: write tests/slow.txt from the durations of a full run, or check a run.

    python tests/durations.py write FILE...    list the functions of which a case took long
    python tests/durations.py check FILE...    name what became slow: unlisted tests, the fast tier

`pytest --durations-file FILE` writes the files. A test takes as long as it computes, or as it
waits: on a busy machine, where each waits for the others too, the seconds of the clock count by
the part of them that all tests of the run computed. Machines differ in speed by more than 2, so
seconds are compared at the pace of the listed tests, and the check fails nothing: a slow machine
makes no run wrong.
"""

from __future__ import annotations

import argparse
import json
import statistics
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("do", choices=["write", "check"])
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    chosen = parser.parse_args()
    cases = [case for file in chosen.files for case in read(file)]
    if chosen.do == "write":
        write(cases)
    else:
        check(cases)


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


def check(cases: list[Case]) -> None:
    """Name the unlisted tests that took long, and a fast tier that takes too long."""
    slow, now = listed(), longest(cases)
    pace = statistics.median(now[name] / slow[name] for name in slow.keys() & now.keys())
    fast = [case for case in cases if case.is_fast]
    total = sum(case.seconds for case in fast)
    print(
        f"fast tier: {len(fast)} tests, {total / 60:.1f} core-minutes; listed tests took "
        f"{pace:.2f} times as long as when they were listed"
    )
    for case in fast:
        function = function_of(case.name)
        is_listed = function in slow or is_slow_by_folder(function)
        if case.seconds > UNLISTED_AT_MOST * pace and not is_listed:
            print(f"{case.name} took {case.seconds:.1f} s; `make durations` lists slow tests anew")
    if total > FAST_TIER_AT_MOST * pace:
        print(
            f"WARNING: the fast tier took more than {FAST_TIER_AT_MOST * pace / 60:.1f} "
            "core-minutes; `make durations` lists slow tests anew"
        )


if __name__ == "__main__":
    main()
