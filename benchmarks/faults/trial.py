"""One trial of a fault, in a process of its own that has a time limit and leaves nothing behind."""

from __future__ import annotations

import atexit
import functools
import json
import os
import pkgutil
import signal
import tempfile
import time
import uuid
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

import faults
from faults import all_faults
from faults.fault import Fault, Outcome

from zygote import Zygote

MARK = "REPLICAX_FAULT"  # in the environment of every process of a trial
LIMIT_SECONDS = 300.0
ROOT = Path(__file__).parents[1]


def try_apart(fault: Fault, seconds: float = LIMIT_SECONDS, package: str = "faults") -> Outcome:
    """Try a fault in a new process; whatever goes wrong there is an outcome, too."""
    forks, mark = _forks()
    with tempfile.TemporaryDirectory(prefix="fault-", ignore_cleanup_errors=True) as folder:
        told, output = Path(folder, "outcome.json"), Path(folder, "output")
        trial = forks.start(
            "-c",
            "import sys, faults.trial; faults.trial.main(*sys.argv[1:])",
            package,
            fault.what,
            folder,
            output=output,
            variables={**os.environ, "PYTHONPATH": _python_path()},
        )
        began = time.monotonic()
        try:
            trial.wait(seconds)
        finally:
            left = _end_marked(mark, but=forks.number)
        if time.monotonic() - began > seconds:
            return Outcome(f"no end within {seconds:g} s", False, seconds)
        if not told.exists():
            printed = output.read_text(errors="replace").strip().splitlines()
            return Outcome(f"the trial failed: {(printed or ['it printed nothing'])[-1]}", False)
        found = Outcome(**json.loads(told.read_text()))
    if left:
        return Outcome(f"{found.outcome}; {left} processes were left", False, found.seconds)
    return found


@functools.cache
def _forks() -> tuple[Zygote, str]:
    """Return a process that forks for each trial, since importing takes longer, and its mark."""
    topics = [f"faults.{module.name}" for module in pkgutil.iter_modules(faults.__path__)]
    mark = uuid.uuid4().hex
    forks = Zygote(*topics, **{MARK: mark, "PYTHONPATH": _python_path()})
    atexit.register(forks.close)
    return forks, mark


def _end_marked(mark: str, but: int) -> int:
    """Kill the processes of a trial that still run; return how many there were."""
    wanted, count = f"{MARK}={mark}".encode(), 0
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state = (path / "stat").read_text().rpartition(")")[2].split()[0]
            is_of_trial = wanted in (path / "environ").read_bytes().split(b"\0")
            if state not in "ZX" and is_of_trial and int(path.name) != but:
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
    """Try the fault of this name here, where no signal comes from the terminal."""
    os.setsid()
    fault = next(fault for fault in all_faults(package) if fault.what == what)
    empty = Path(folder, "trial")
    empty.mkdir()
    Path(folder, "outcome.json").write_text(json.dumps(asdict(fault.try_it(empty))))
