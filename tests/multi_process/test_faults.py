"""One worker of a real cluster does what it should not: all end in time, and say which, and why.

This is the fault that the fast tests try; the others are rows of `make faults`.
"""

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import start_program, wait_until
from processes import running_with

PROGRAM = Path(__file__).with_name("faults.py")
SECONDS = 200  # for what takes a few, and the watchdog's four; the machine may be busy


def end_of(process):
    """What a cluster has printed until its end."""
    try:
        return process.communicate(timeout=SECONDS)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        pytest.fail(f"it has not ended: {process.communicate()[0][-4000:]}")


@pytest.mark.core
@pytest.mark.timeout(500)
def test_one_is_killed(tmp_path):
    launcher = [sys.executable, "-m", "replicax.launch", "run", "--workers", "2"]
    own = {"RX_WATCHDOG_SECONDS": "4", "JAX_NUM_CPU_DEVICES": "1", "FAULTS": str(tmp_path)}
    command = [*launcher, PROGRAM, "kill in a loop", "1"]
    how = {"stderr": subprocess.STDOUT, "start_new_session": True}
    process = start_program(command, env={**os.environ, **own}, **how)
    output = end_of(process)
    assert process.returncode not in (0, None), output[-4000:]
    assert "all done" not in output
    lines = re.findall(r"^\[worker (\d+)\] ?(.*)$", output, re.M)
    pid = next(line for worker, line in lines if worker == "1" and line.startswith("pid "))[4:-1]
    said = "\n".join(line for worker, line in lines if worker == "0")
    assert said.count("replicax: WorkerLost: ") == 1, output[-6000:]
    assert "worker 1 died: its connection closed without notice" in said, output[-6000:]
    # On a busy machine it may have been heard of last before its first step.
    named = f"worker 1 (host {socket.gethostname()}, pid {pid})"
    where = r" was (at step \d+ \((train step|run|reduce)\)|before its first step)"
    assert re.search(re.escape(named) + where, said), output[-6000:]
    assert "so every worker ends, with exit code 70" in said
    assert f"Lost: {named}: " in said
    assert "Its Python stack:\n" in said
    wait_until(lambda: not running_with(f"FAULTS={tmp_path}"))
