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

from replicax._control import EXIT_CODE

from helpers import LEAN, wait_until
from processes import running_with

pytestmark = pytest.mark.timeout(500)

PROGRAM = Path(__file__).with_name("faults.py")
HOST = socket.gethostname()
SECONDS = 200  # for what takes a few, and the watchdog's four; the machine may be busy
# What JAX says when it ends a worker whose chief has died.
OF_JAX = "Terminating process because the JAX distributed service detected fatal errors"
# The code of who ends by its own error; JAX may abort a process that leaves its cluster.
OF_AN_ERROR = (1, 128 + signal.SIGABRT)


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
                **LEAN,
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


def line_of(comment):
    """The line of the program with this comment."""
    lines = PROGRAM.read_text().splitlines()
    (number,) = [i for i, line in enumerate(lines, 1) if line.endswith(f"# {comment}")]
    return number


def assert_lost(ended, worker, culprit, how):
    """One worker has said, once, which other one is lost, how, and where that was."""
    said = ended.said(worker)
    assert said.count("replicax: WorkerLost: ") == 1, ended.output[-6000:]
    assert f"Received: worker {culprit} {how}" in said, ended.output[-6000:]
    # On a busy machine it may have been heard of last before its first step.
    where = r" was (at step \d+ \((train step|run|reduce)\)|before its first step)"
    assert re.search(re.escape(ended.named(culprit)) + where, said), ended.output[-6000:]
    assert "so every worker ends, with exit code 70" in said
    assert f"Lost: {ended.named(culprit)}: " in said
    return said


@pytest.mark.parametrize(
    ("fault", "culprit", "how"),
    [
        pytest.param(
            "kill in a loop",
            1,
            "died: its connection closed without a farewell",
            marks=pytest.mark.core,
        ),
        ("stop", 1, "fell silent: nothing was heard of it for 4 s"),
        ("stop", 0, "fell silent: nothing was heard of it for 4 s"),
    ],
)
def test_one_is_killed_or_stopped(end_of, fault, culprit, how):
    said = assert_lost(end_of(fault, culprit), 1 - culprit, culprit, how)
    assert "Its Python stack:\n" in said


def test_two_of_three_say_who_is_lost(end_of):
    ended = end_of("kill", 1, workers=3)
    for worker in (0, 2):
        said = assert_lost(ended, worker, 1, "died: its connection closed without a farewell")
        assert "Its Python stack:\n" in said


@pytest.mark.parametrize("fault", ["kill", "kill in a loop", "kill at once"])
def test_the_chief_is_killed(end_of, fault):
    ended = end_of(fault, 0)
    assert_lost(ended, 1, 0, "died: its connection closed")
    assert OF_JAX not in ended.output
    assert (
        f"SIGKILL: kill -9, or memory ran out) from worker 0 (pid {ended.pid(0)})" in ended.output
    )


def test_one_fails(end_of):
    ended = end_of("raise", 1)
    assert ended.code in OF_AN_ERROR
    said = assert_lost(ended, 0, 1, "failed with an unhandled exception")
    assert "      ValueError: this worker cannot go on" in said
    assert ended.said(1).count("ValueError: this worker cannot go on") == 1
    assert "WorkerLost" not in ended.said(1)


@pytest.mark.parametrize(
    ("fault", "arguments", "how", "function", "comment"),
    [
        ("sleep", (), "was waited for longer than the", "stand_still", "here it stands still"),
        ("busy", ("5",), "was waited for longer than the", "be_busy", "here it is busy"),
    ],
)
def test_one_keeps_the_others_waiting(end_of, fault, arguments, how, function, comment):
    ended = end_of(fault, 1, *arguments)
    for worker in (0, 1):  # the culprit says it, too
        said = assert_lost(ended, worker, 1, how)
        assert f'faults.py", line {line_of(comment)}, in {function}' in said
        assert f"{ended.named(0)} waits for it at step " in said


@pytest.mark.parametrize("fault", ["leave early", "reduce more"])
@pytest.mark.parametrize(("culprit", "workers"), [(1, 2), (0, 2), (1, 3)])
def test_loops_that_are_out_of_step_end(end_of, fault, culprit, workers):
    ended = end_of(fault, culprit, workers=workers)
    said = "\n".join(ended.said(worker) for worker in range(workers))
    assert ended.named(culprit) in said, ended.output[-6000:]
    assert "different places" in said or "took other steps" in said or "ended while" in said
    assert "faults.py" in said  # the stack of one that waits


def test_one_ends_early(end_of):
    ended = end_of("exit", 1)
    assert ended.code == EXIT_CODE  # of worker 0: that of worker 1 is its own, which is 0
    assert "Its program has ended." in assert_lost(ended, 0, 1, "ended while others needed it")
    assert "this worker has ended while others needed it, so they end, too" in ended.said(1)


def test_workers_that_differ_say_in_what(end_of):
    ended = end_of("program", 1)
    assert ended.code in (*OF_AN_ERROR, EXIT_CODE)
    rule = "WorkersDiffer: All workers must have the same train step. Received: "
    for worker in (0, 1):  # by its own error, or as the reason why the other one failed
        said = ended.said(worker)
        assert said.count(rule) >= 1
        facts = ["operation ", "dot_general", "max ", "worker 0", "worker 1"]
        assert all(fact in said for fact in facts), said[-3000:]
        assert said.count("replicax: WorkerLost: ") <= 1
