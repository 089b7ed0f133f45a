"""`replicax run` as a user starts it, and the programs that it runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import replicax as rx
from replicax.launch import _cli

from helpers import wait_until
from processes import running_with

SOURCE = str(Path(rx.__file__).parents[1])
REPLICAX = [sys.executable, "-m", "replicax.launch"]
# What describes a cluster to those who look for one; the tests' own environment may have some.
CLUSTER_VARIABLES = ("TF_CONFIG", "SLURM_", "OMPI_", "PMI", "SM_", "JOB_COMPLETION_INDEX", "RX_")


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Work in a folder with the files that commands are given; they stay empty."""
    for name in ("train.py", "model.keras"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def started(monkeypatch):
    """What `main` would start, which then ends with 3: a list of (name, options, environment)."""
    calls = []

    def catch(arguments, environment):
        *command, name, options = arguments
        assert command == [sys.executable, "-m", "replicax._tools.commands"]
        calls.append((name, json.loads(options), environment))
        return 3

    monkeypatch.setattr(_cli, "run_child", catch)
    return calls


@pytest.fixture
def script(tmp_path):

    def script(code):
        path = tmp_path / "script.py"
        path.write_text(textwrap.dedent(code))
        return str(path)

    return script


@pytest.fixture
def launch(tmp_path):
    """Start `replicax run`; in the end, nothing of it may be left."""
    started = []

    def launch(*arguments, **options):
        environ = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(CLUSTER_VARIABLES)
        }
        extra = options.pop("environ", {})
        process = subprocess.Popen(
            [*options.pop("before", ()), *REPLICAX, "run", *arguments],
            env={**environ, "DIR": str(tmp_path), "PYTHONPATH": SOURCE, **extra},
            text=True,
            start_new_session=True,  # a group of its own, so that Ctrl-C does not hit the tests
            **{"cwd": tmp_path, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options},
        )
        started.append(process)
        return process

    yield launch
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    wait_until(lambda: not running_with(f"DIR={tmp_path}"))
