"""Processes of a cluster that die, fail, differ or wait; the programs are those of the tests.

Each process has four seconds to be heard of, and eight to be waited for, so that a trial takes
seconds.
"""

from __future__ import annotations

import functools
import os
import re
import resource
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import keras
import numpy as np

import replicax as rx
from faults.fault import Fault, Outcome
from faults.trial import ROOT

SECONDS = 120  # for what takes a few: the machine may be busy
PROGRAM = ROOT.parent / "tests" / "multi_process" / "faults.py"
_OUT_OF_STEP = {
    "leave early": "leaves its loop a batch early",
    "reduce more": "calls reduce once more",
}
SINCE_CHECKPOINT = "steps since the last checkpoint"
_NOTICE = re.compile(r"(WorkerLost|WorkersDiffer): |has waited")


def _environment(mark: str) -> dict[str, str]:
    own = {
        "RX_WATCHDOG_SECONDS": "4",
        "RX_WAIT_LIMIT_SECONDS": "8",
        "JAX_NUM_CPU_DEVICES": "1",
        "JAX_PLATFORMS": "cpu",
    }
    return {**os.environ, **own, "REPLICAX_CLUSTER": mark}


def _left(mark: str) -> list[int]:
    """The processes that have a mark in their environment."""
    found, wanted = [], f"REPLICAX_CLUSTER={mark}".encode()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            runs = (path / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
            if runs and wanted in (path / "environ").read_bytes().split(b"\0"):
                found.append(int(path.name))
        except OSError:
            continue
    return found


def _seconds_until_none_is_left(mark: str) -> float | None:
    began = time.monotonic()
    while left := _left(mark):
        if time.monotonic() - began > SECONDS:
            for process in left:
                os.kill(process, signal.SIGKILL)
            return None
        time.sleep(0.05)
    return time.monotonic() - began


# Workers that compute together.


def _workers(
    fault: str,
    culprit: int,
    error: str,
    folder: Path,
    *,
    workers: int = 2,
    lost: str = SINCE_CHECKPOINT,
) -> Outcome:
    """Run the program of the tests, in which a worker does what it should not after step 3."""
    mark = str(folder)
    command = [sys.executable, "-m", "replicax.launch", "run", "--workers", str(workers)]
    process = subprocess.Popen(
        [*command, str(PROGRAM), fault, str(culprit)],
        env=_environment(mark),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    done = noticed = None
    lines = []
    for line in process.stdout:
        lines.append(line)
        done = done or (time.monotonic() if "fault now" in line else None)
        noticed = noticed or (time.monotonic() if _NOTICE.search(line) else None)
    code, said = process.wait(), "".join(lines)
    is_over = _seconds_until_none_is_left(mark) is not None and "all done" not in said
    found = re.search(rf"{error}: .*?(worker \d+)", said, re.DOTALL)
    named = "the operation that differs" if fault == "program" and "dot_general" in said else ""
    named = named or (found[1] if found else "")
    took = noticed - done if noticed and done else None
    if fault in _OUT_OF_STEP:  # all that wait for each other are named
        listed = re.search(rf"{error}: .*?workers? ([\d, and]*\d)", said)
        named = f"worker {culprit}" if listed and str(culprit) in listed[1] else ""
    is_right = bool(found) and named in (f"worker {culprit}", "the operation that differs")
    told = f"all ended with an error, by {error}" if is_over and code else "not all ended"
    return Outcome(told, is_right and is_over and bool(code), took, named, lost)


def _nap(folder: Path) -> Outcome:
    """Let a worker sleep for longer than it is waited for without a word, and go on."""
    mark = str(folder)
    command = [sys.executable, "-m", "replicax.launch", "run", "--workers", "2"]
    done = subprocess.run(
        [*command, str(PROGRAM), "nap", "1"],
        env=_environment(mark),
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    is_over = _seconds_until_none_is_left(mark) is not None and not done.returncode
    found = re.search(r"has waited (\d+) s for (worker 1) ", done.stdout + done.stderr)
    has_stack = "misbehave" in done.stdout + done.stderr
    told = "a notice with its stack; training went on" if is_over else "not all went on"
    seconds = float(found[1]) if found else None
    is_right = is_over and found is not None and has_stack
    return Outcome(told, is_right, seconds, found[2] if found else "")


def _launcher(folder: Path) -> Outcome:
    """Kill `replicax run`, while its workers stand still."""
    mark = str(folder)
    command = [sys.executable, "-m", "replicax.launch", "run", "--workers", "2"]
    process = subprocess.Popen(
        [*command, str(PROGRAM), "sleep", "1"],
        env=_environment(mark),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    next(line for line in process.stdout if "fault now" in line)
    process.kill()
    took = _seconds_until_none_is_left(mark)
    process.wait()
    process.stdout.close()
    told = "its workers ended, too" if took is not None else "workers were left"
    return Outcome(told, took is not None, took, lost=SINCE_CHECKPOINT)


# Parameter servers.

_PROGRAM = """
import replicax as rx, keras, time
strategy = rx.ParameterServerStrategy(num_workers=2, num_ps=1)
with strategy.scope():
    variable = keras.Variable(0.0)
variable.assign_add(1.0)
strategy.coordination.engine.ready()
print("ready", flush=True)
{then}
"""


# Stop the server, which answers no more, and end.
_STOP_AND_CLOSE = """
import os, signal
from replicax._ps.hosts.contact import ask_about
cluster = strategy.coordination.engine.cluster
address, *_ = cluster.member("server", 0).addresses
os.kill(ask_about(address, cluster.secret, timeout=10).process, signal.SIGSTOP)
strategy.close()
"""


def _coordinator(then: str, how: str, folder: Path) -> Outcome:
    """End a program that has started servers and workers of its own."""
    mark = str(folder)
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM.format(then=then)],
        env=_environment(mark),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    process.stdout.readline()
    members = len(_left(mark)) - 1
    if how == "kill":
        process.kill()
    took = _seconds_until_none_is_left(mark)
    _, said = process.communicate()
    named = "the exception" if "ValueError: it cannot go on" in said else ""
    is_right = took is not None and members >= 3 and bool(named) == (how == "raise")
    told = "its servers and workers ended, too" if took is not None else "members were left"
    lost = "nothing" if how == "close" else "what came after the last checkpoint"
    return Outcome(told, is_right, took, named, lost)


def _members(fault: str, folder: Path) -> Outcome:
    """Run the program of the tests on two servers and two workers, and do one thing to them."""
    from ps_processes import test_faults

    with ExitStack() as stack:
        cluster = stack.enter_context(test_faults.cluster(folder))
        cluster.chief.next("begun")
        for known in test_faults.faults.FAULTS:
            cluster.chief.next("ready")
            if known == fault:
                cluster.signal(fault)
            cluster.chief.hear()
            said = cluster.chief.next("epoch")
            if known == fault:
                break
        else:
            return _restarted(cluster, stack)
    epochs = test_faults.faults.FAULTS.index(fault) + 1
    samples, batch = test_faults.faults.SAMPLES, test_faults.faults.BATCH
    servers = [one["server"] for one in said["recoveries"]]
    sources = {one["source"] for one in said["recoveries"]}
    lost = {one["server"]: one["lost_updates"] for one in said["recoveries"]}
    counted = said["seen"][2] + lost.get(said["server"], 0) * batch == epochs * samples
    named = ", ".join(f"server {server}" for server in sorted(servers))
    told = "continued" + (f", from its {sources.pop()}" if len(sources) == 1 else "")
    took = max((one["seconds"] for one in said["recoveries"]), default=None)
    what = (
        "the updates since its snapshot, whose number is said"
        if fault.startswith("both ser")
        else "nothing"
    )
    return Outcome(told, counted and bool(servers) == ("server" in fault), took, named, what)


def _restarted(cluster: Any, stack: ExitStack) -> Outcome:
    """Kill the chief behind a checkpoint, and start another one."""
    chief = cluster.chief
    chief.next("errors")
    before = chief.next("ready")
    assert before["fault"] == "chief dies"
    chief.signal(signal.SIGKILL)
    chief.wait()
    began = time.monotonic()
    second = cluster.another_chief("second")
    second.next("begun")
    found = second.next("restored")
    took = time.monotonic() - began
    second.next("end")
    epochs, samples = len(cluster.faults.FAULTS), cluster.faults.SAMPLES
    is_right = found["seen"] == [epochs, epochs, epochs * samples] and found["epoch"] == epochs
    return Outcome(
        "another chief continued from the checkpoint", is_right, took, "", SINCE_CHECKPOINT
    )


def _unclosed(folder: Path) -> Outcome:
    """Let a program end without a word to the server of a given cluster."""
    from ps_processes import test_starting

    code, said = test_starting.outlive(folder)
    named = "`strategy.close()`" if len(said) == 1 and "strategy.close()" in said[0] else ""
    is_right = bool(named) and code == 128 + signal.SIGTERM and not list(folder.iterdir())
    told = "a server says so once, waits for another one, and ends when it is asked to"
    return Outcome(told if is_right else "\n".join(said), is_right, named=named)


# Resources.


def _full_disk(folder: Path) -> Outcome:
    """Save a checkpoint where no file may be larger than 1 KiB, as where the disk is full."""
    kernel = keras.Variable(np.arange(1000, dtype="float32"), name="kernel")
    manager = rx.train.CheckpointManager(
        rx.train.Checkpoint(kernel=kernel), str(folder / "checkpoints"), max_to_keep=2
    )
    first = manager.save()
    kernel.assign_add(np.ones(1000, "float32"))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, before[1]))
    told, named = "saved", ""
    try:
        manager.save()
    except OSError as error:
        told = f"refused: {type(error).__name__}; the checkpoint before it is whole"
        named = "the folder" if "checkpoints" in str(error) else ""
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    rx.train.Checkpoint(kernel=kernel).restore(first).assert_consumed()
    is_whole = manager.latest_checkpoint == first and float(kernel.value[7]) == 7.0
    return Outcome(told, told != "saved" and is_whole, named=named)


def _of_workers(
    what: str,
    fault: str,
    culprit: int,
    error: str = "WorkerLost",
    *,
    tested_by: str = "",
    **how: Any,
) -> Fault:
    return Fault(
        "hangs", what, functools.partial(_workers, fault, culprit, error, **how), tested_by
    )


FAULTS = (
    _of_workers(
        "One of two workers is killed in an own loop",
        "kill in a loop",
        1,
        tested_by="multi_process/test_faults.py::test_one_is_killed",
    ),
    _of_workers("One of three workers is killed in fit", "kill", 1, workers=3),
    _of_workers("The machine of a worker stands still", "stop", 1),
    _of_workers("The machine of the chief stands still", "stop", 0),
    _of_workers("A worker raises an exception", "raise", 1),
    _of_workers("The chief raises an exception", "raise", 0),
    _of_workers("A worker has no memory left", "memory", 1),
    _of_workers("A worker's program ends early", "exit", 1),
    _of_workers("A worker has another model", "program", 1, "WorkersDiffer", lost="nothing"),
    _of_workers("The chief is killed in fit", "kill", 0),
    _of_workers("The chief is killed as soon as all have joined", "kill at once", 0),
    _of_workers(
        "A worker sleeps for ever in a callback",
        "sleep",
        1,
        tested_by="A worker computes for ever in a callback",
    ),
    _of_workers("A worker computes for ever in a callback", "busy", 1),
    *(
        _of_workers(f"{who} {what}", fault, culprit, workers=workers, tested_by=tested_by)
        for fault, what in _OUT_OF_STEP.items()
        for who, culprit, workers, tested_by in (
            ("One of two workers", 1, 2, f"One of three workers {what}"),
            ("One of three workers", 1, 3, ""),
            ("The chief", 0, 2, ""),
        )
    ),
    Fault("hangs", "A worker is busy elsewhere for longer than the watchdog's time", _nap),
    Fault("hangs", "`replicax run` is killed", _launcher),
    Fault(
        "hangs",
        "A program that has started parameter servers is killed",
        functools.partial(_coordinator, "time.sleep(1000)", "kill"),
    ),
    Fault(
        "hangs",
        "A program that has started parameter servers raises an exception",
        functools.partial(
            _coordinator, "time.sleep(1); raise ValueError('it cannot go on')", "raise"
        ),
    ),
    Fault(
        "hangs",
        "A parameter server stands still when its program closes the strategy",
        functools.partial(_coordinator, _STOP_AND_CLOSE, "close"),
    ),
    *(
        Fault(
            "hangs",
            what,
            functools.partial(_members, fault),
            f"ps_processes/test_faults.py::{test}",
        )
        for what, fault, test in (
            (
                "A worker of parameter servers is killed",
                "worker dies",
                "test_each_sample_counts_once_in_an_epoch",
            ),
            (
                "A parameter server that has a replica is killed",
                "server dies",
                "test_a_server_that_dies_or_stands_still_loses_nothing_with_a_replica",
            ),
            (
                "A parameter server and its replica are killed",
                "both servers die",
                "test_without_its_replica_it_is_said_what_a_server_has_lost",
            ),
            (
                "The coordinator of a given cluster is killed",
                "chief dies",
                "test_a_chief_that_was_killed_goes_on_from_its_checkpoint",
            ),
        )
    ),
    Fault(
        "hangs",
        "The coordinator of a given cluster ends without closing it",
        _unclosed,
        "ps_processes/test_starting.py::test_a_given_server_outlives_a_program_that_does_not_close",
    ),
    Fault("files", "The disk is full when a checkpoint is saved", _full_disk),
)
