"""One trial of a fault, in a process of its own that has a time limit and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from faults import all_faults
from faults.fault import Fault, Outcome

MARK = "REPLICAX_FAULT"  # in the environment of every process of a trial
LIMIT_SECONDS = 300.0
ROOT = Path(__file__).parents[1]


def try_apart(fault: Fault, seconds: float = LIMIT_SECONDS, package: str = "faults") -> Outcome:
    """Try a fault in a new process; whatever goes wrong there is an outcome, too."""
    mark = uuid.uuid4().hex
    with tempfile.TemporaryDirectory(prefix="fault-", ignore_cleanup_errors=True) as folder:
        told = Path(folder, "outcome.json")
        process = subprocess.Popen(
            [sys.executable, "-m", "faults.trial", package, fault.what, folder],
            env={**os.environ, MARK: mark, "PYTHONPATH": _python_path()},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
        )
        try:
            printed, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            end_marked(mark)
            process.communicate()
            return Outcome(f"no end within {seconds:g} s", False, seconds)
        left = end_marked(mark)
        if not told.exists():
            last = (printed.strip().splitlines() or ["it printed nothing"])[-1]
            return Outcome(f"the trial failed: {last}", False)
        found = Outcome(**json.loads(told.read_text()))
    if left:
        return Outcome(f"{found.outcome}; {left} processes were left", False, found.seconds)
    return found


def end_marked(mark: str) -> int:
    """Kill the processes of a trial that still run; return how many there were."""
    wanted, count = f"{MARK}={mark}".encode(), 0
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state = (path / "stat").read_text().rpartition(")")[2].split()[0]
            if state not in "ZX" and wanted in (path / "environ").read_bytes().split(b"\0"):
                os.kill(int(path.name), signal.SIGKILL)
                count += 1
    return count


def _python_path() -> str:
    return os.pathsep.join(
        [
            *(str(ROOT.parent / folder) for folder in ("benchmarks", "tests", "tests/lean")),
            os.environ.get("PYTHONPATH", ""),
        ]
    )


def main(package: str, what: str, folder: str) -> None:
    """Try the fault of this name here."""
    fault = next(fault for fault in all_faults(package) if fault.what == what)
    empty = Path(folder, "trial")
    empty.mkdir()
    Path(folder, "outcome.json").write_text(json.dumps(asdict(fault.try_it(empty))))


if __name__ == "__main__":
    main(*sys.argv[1:])
