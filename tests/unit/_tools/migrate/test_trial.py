"""`--run` starts the rewritten program in a copy, ends it, and compares that with the verdict."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from replicax._tools import commands

from helpers import wait_until

HEAD = "import os, subprocess, sys\nimport tensorflow as tf\n"
TRAINING = """
strategy = tf.distribute.get_strategy()
assert strategy.num_replicas_in_sync == 2
variable = tf.Variable(0.0, aggregation=tf.VariableAggregation.SUM)

def step():
    variable.assign_add(1.0)

for _ in range(1000):
    strategy.run(step)
sys.exit("too late")
"""


@pytest.fixture
def ran(tmp_path, capsys):
    """Runs a program; gives the exit code, its verdict, and what the run showed."""

    def run(name, text, **options):
        folder = tmp_path / "programs"
        folder.mkdir()
        (folder / name).write_text(text)
        before = sorted(folder.rglob("*"))
        request = {
            "paths": [str(folder / name)], "diff": False, "write": False, "backup": False,
            "json": str(tmp_path / "found.json"), "run": True, "steps": 3, "replicas": 2,
            "time_limit": 100, "args": [], **options,
        }  # fmt: skip
        code = commands.main(["migrate", json.dumps(request)])
        assert (sorted(folder.rglob("*")), (folder / name).read_text()) == (before, text)
        (program,) = json.loads((tmp_path / "found.json").read_text())["programs"]
        return code, program["verdict"], program["run"]["agrees"], program["run"]["text"]

    return run


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except OSError:
        return False


def test_it_is_ended_after_some_steps_with_all_that_it_started(ran, tmp_path, monkeypatch):
    monkeypatch.setenv("PIDS", str(tmp_path / "pids"))
    started = (
        "other = subprocess.Popen(['sleep', '1000'])\n"
        "open(os.environ['PIDS'], 'w').write(f'{os.getpid()} {other.pid}')\n"
        "open('written', 'w').write(sys.argv[1])\n"
    )
    code, verdict, agrees, text = ran("train.py", HEAD + started + TRAINING, args=["--epochs"])
    assert (code, verdict, agrees) == (0, "runs as it is", True)
    assert text == "made 3 steps on 2 devices; agrees"
    pids = (tmp_path / "pids").read_text().split()
    wait_until(lambda: not any(map(is_running, pids)))


def test_a_failure_that_was_foreseen(ran):
    code, verdict, agrees, text = ran("train.py", HEAD + "tf.raw_ops.Abs(x=1)\n")
    assert (code, verdict, agrees) == (1, "needs these changes", True)
    assert "AttributeError at train.py:3: " in text


def test_a_failure_that_was_not_foreseen(ran):
    code, verdict, agrees, text = ran("train.py", HEAD + "tf.abs(1)\n[].unknown()\n")
    assert (code, verdict, agrees) == (1, "runs as it is", False)
    assert "AttributeError at train.py:4: 'list'" in text


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("open('data.csv')", "FileNotFoundError"),
        # As Keras says it of a data set without a network.
        ("raise Exception('URL fetch failure on x')", "Exception"),
    ],
)
def test_a_program_without_its_data_says_nothing(ran, line, error):
    code, _, agrees, text = ran("train.py", HEAD + f"tf.abs(1)\n{line}\n")
    assert (code, agrees) == (0, None)
    assert f"then {error} at train.py:4: " in text


def test_a_program_that_ends_by_itself(ran):
    code, _, agrees, text = ran("train.py", HEAD + "tf.abs(1)\n")
    assert (code, agrees) == (0, True)
    assert text == "made 0 steps on 2 devices and ended by itself; agrees"


def test_a_notebook_is_run_too(ran):
    cells = ["!exit 1\nimport tensorflow as tf", "%%bash\nexit 1", "int(tf.abs(-1)) / 0"]
    listed = [{"cell_type": "code", "metadata": {}, "source": cell} for cell in cells]
    text = json.dumps({"cells": listed, "metadata": {}, "nbformat": 4, "nbformat_minor": 5})
    code, _, agrees, text = ran("a.ipynb", text)
    assert (code, agrees) == (1, False)
    assert "ZeroDivisionError" in text


def test_a_program_that_does_not_end(ran, tmp_path, monkeypatch):
    monkeypatch.setenv("PIDS", str(tmp_path / "pids"))
    endless = "open(os.environ['PIDS'], 'w').write(str(os.getpid()))\nwhile True: tf.abs(1)\n"
    code, _, agrees, text = ran("train.py", HEAD + endless, time_limit=8)
    assert (code, agrees) == (0, None)
    assert text == "did not end within 8 s; inconclusive"
    assert not (tmp_path / "pids").exists() or not is_running((tmp_path / "pids").read_text())


def test_a_command_that_is_ended_ends_its_program(tmp_path, monkeypatch):
    pids, script = tmp_path / "pids", tmp_path / "train.py"
    monkeypatch.setenv("PIDS", str(pids))
    note = "open(os.environ['PIDS'] + '~', 'w').write(str(os.getpid()))\n"
    script.write_text(HEAD + note + "os.rename(os.environ['PIDS'] + '~', os.environ['PIDS'])\n")
    with script.open("a") as file:
        file.write("while True: tf.abs(1)\n")
    asked = [sys.executable, "-m", "replicax", "migrate", str(script), "--run"]
    migrating = subprocess.Popen(asked, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        wait_until(pids.exists)
        pid = pids.read_text()
        assert is_running(pid)
    finally:
        migrating.terminate()
        migrating.communicate(timeout=60)
    wait_until(lambda: not is_running(pid))


def test_parameter_servers_are_not_started(ran):
    made = "tf.distribute.experimental.ParameterServerStrategy(None)\n"
    code, _, agrees, text = ran("train.py", HEAD + made)
    assert (code, agrees) == (0, None)
    assert text.startswith("not run: ")
