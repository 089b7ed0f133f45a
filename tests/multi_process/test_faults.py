"""One worker of a real cluster does what it should not: all end in time, and say which, and why."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import wait_until
from processes import running_with

pytestmark = pytest.mark.timeout(500)

PROGRAM = Path(__file__).with_name("faults.py")
HOST = socket.gethostname()
SECONDS = 200  # for what takes a few, and the watchdog's four; the machine may be busy


class Ended:
    """A cluster that has ended: its exit code, and what each worker has printed."""

    def __init__(self, code, output):
        self.code, self.output = code, output
        found = re.findall(r"^\[worker (\d+)\] ?(.*)$", output, re.M)
        self.workers = sorted({int(worker) for worker, _ in found})
        self._lines = found

    def said(self, worker):
        return "\n".join(line for other, line in self._lines if int(other) == worker)

    def pid(self, worker):
        return int(re.search(r"^pid (\d+)\.$", self.said(worker), re.M)[1])

    def named(self, worker):
        return f"worker {worker} (host {HOST}, pid {self.pid(worker)})"


@pytest.fixture
def end_of(tmp_path):
    """Run a cluster with a fault; in the end no process of it may be left."""
    variable = f"FAULTS={tmp_path}"

    def run(fault, culprit, *arguments, workers=2):
        launcher = [sys.executable, "-m", "replicax.launch", "run", "--workers", str(workers)]
        process = subprocess.Popen(
            [*launcher, str(PROGRAM), fault, str(culprit), *arguments],
            env={
                **os.environ,
                "RX_WATCHDOG_SECONDS": "4",
                "RX_WAIT_LIMIT_SECONDS": "9",
                "JAX_NUM_CPU_DEVICES": "1",
                "FAULTS": str(tmp_path),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            pytest.fail(f"it has not ended: {process.communicate()[0][-4000:]}")
        ended = Ended(process.returncode, output)
        assert ended.code not in (0, None), output[-4000:]
        assert ended.workers == list(range(workers)), output[-4000:]
        assert "all done" not in output
        return ended

    yield run
    wait_until(lambda: not running_with(variable))


def assert_lost(ended, worker, culprit, how):
    """One worker has said, once, which other one is lost, how, and where that was."""
    said = ended.said(worker)
    assert said.count("replicax: WorkerLost: ") == 1, ended.output[-6000:]
    assert f"worker {culprit} {how}" in said, ended.output[-6000:]
    # On a busy machine it may have been heard of last before its first step.
    where = r" was (at step \d+ \((train step|run|reduce)\)|before its first step)"
    assert re.search(re.escape(ended.named(culprit)) + where, said), ended.output[-6000:]
    assert "so every worker ends, with exit code 70" in said
    assert f"Lost: {ended.named(culprit)}: " in said
    return said


@pytest.mark.core  # the other faults are rows of `make faults`
def test_one_is_killed(end_of):
    said = assert_lost(
        end_of("kill in a loop", 1), 0, 1, "died: its connection closed without a farewell"
    )
    assert "Its Python stack:\n" in said
