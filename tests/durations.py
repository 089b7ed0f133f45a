"""Keep the fast tier fast: write tests/slow.txt from the durations of a full run, or check a run.

    python tests/durations.py write FILE...    list the functions of which a case took long
    python tests/durations.py check FILE...    fail if a test that is not listed took long, twice

The files are written by `pytest --durations-file FILE`. A test takes as long as it computes, or as
it waits: on a busy machine, where each waits for the others too, the seconds of the clock count by
the part of them that all tests of the run computed. A test that took too long is run once more,
alone, before it is called slow. Where the tests that are listed take longer than when they were
listed, the machine is slower, and others may take longer, too.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from tiers import (
    FAST_TIER_AT_MOST,
    LIST,
    LISTED_FROM,
    TESTS,
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
    """Return 1 if the fast tier has a test, or a sum, that is too long for it."""
    slow, now = listed(), longest(cases)
    ratios = [now[function] / slow[function] for function in slow.keys() & now.keys()]
    pace = max(1.0, statistics.median(ratios or [1.0]))
    fast = [case for case in cases if case.is_fast]
    total, limit = sum(case.seconds for case in fast), UNLISTED_AT_MOST * pace
    print(
        f"fast tier: {len(fast)} tests, {total / 60:.1f} core-minutes; listed tests took "
        f"{pace:.2f} times as long as when they were listed"
    )
    long = [
        case.name
        for case in fast
        if case.seconds > limit
        and not is_slow_by_folder(function_of(case.name))
        and function_of(case.name) not in slow
    ]
    faults = [f"{name} took more than {limit:.1f} s, twice" for name in still_long(long, limit)]
    if total > FAST_TIER_AT_MOST * pace:
        faults.append(f"the fast tier took more than {FAST_TIER_AT_MOST / 60:.0f} core-minutes")
    for fault in faults:
        print(f"{fault}; `make durations` lists slow tests anew", file=sys.stderr)
    return bool(faults)


def still_long(names: list[str], limit: float) -> list[str]:
    """Run the tests once more, one after another, and return those that took as long again."""
    if not names:
        return []
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "--durations-file", file.name, *names],
            cwd=TESTS.parent,
            check=False,
        )
        again = {case.name: case.seconds for case in read(Path(file.name))}
    return [name for name in names if again.get(name, limit + 1) > limit]


if __name__ == "__main__":
    sys.exit(main())
