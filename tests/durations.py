"""Keep the fast tier fast: write tests/slow.txt from the durations of a full run, or check a run.

    python tests/durations.py write FILE...    list the functions of which a case took long
    python tests/durations.py check FILE...    fail if a test that is not listed took long, twice

The files are written by `pytest --durations-file FILE`. A test takes as long as it computes, or as
it waits: on a busy machine, where each waits for the others too, the seconds of the clock count by
the part of them that all tests of the run computed. A test that took too long is run once more,
alone, before it is called slow.
"""

from __future__ import annotations

import argparse
import json
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


def write(cases: list[Case]) -> None:
    """List each function of which a case took `LISTED_FROM` seconds, unless its folder is slow."""
    slow: dict[str, float] = {}
    for case in cases:
        function = function_of(case.name)
        if case.seconds >= LISTED_FROM and not is_slow_by_folder(function):
            slow[function] = max(case.seconds, slow.get(function, 0.0))
    LIST.write_text("".join(f"{name} {seconds:.1f}\n" for name, seconds in sorted(slow.items())))
    print(f"{LIST.name}: {len(slow)} functions")


def check(cases: list[Case]) -> int:
    """Return 1 if the fast tier has a test, or a sum, that is too long for it."""
    fast = [case for case in cases if case.is_fast]
    total = sum(case.seconds for case in fast)
    print(f"fast tier: {len(fast)} tests, {total / 60:.1f} core-minutes")
    slow = listed()
    long = [
        case.name
        for case in fast
        if case.seconds > UNLISTED_AT_MOST
        and not is_slow_by_folder(function_of(case.name))
        and function_of(case.name) not in slow
    ]
    faults = [f"{name} took more than {UNLISTED_AT_MOST} s, twice" for name in still_long(long)]
    if total > FAST_TIER_AT_MOST:
        faults.append(f"the fast tier took more than {FAST_TIER_AT_MOST / 60:.0f} core-minutes")
    for fault in faults:
        print(f"{fault}; `make durations` lists slow tests anew", file=sys.stderr)
    return bool(faults)


def still_long(names: list[str]) -> list[str]:
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
    return [name for name in names if again.get(name, UNLISTED_AT_MOST + 1) > UNLISTED_AT_MOST]


if __name__ == "__main__":
    sys.exit(main())
