"""The whole comparison, small: in this process, and as a user calls it."""

import contextlib
import json
import os
import signal
import sys
from pathlib import Path

import pytest

import replicax as rx
from replicax._tools.compare import training
from replicax.report import Settings, compare

from helpers import WITH_PLOTS, completed, start_program, wait_until

SMALL = ["--model", "mlp", "--examples", "64", "--epochs", "1", "--repeats", "1"]
OF_WORKERS = ["--strategies", "one_device,multi_worker,parameter_server"]


class Listener:
    """Keeps what it hears."""

    def __init__(self):
        self.begun, self.ended, self.steps = [], [], 0

    def begin(self, job, *, steps):
        self.begun.append((job, steps))

    def advance(self):
        self.steps += 1

    def report(self, text):
        pass

    def end(self, text):
        self.ended.append(text)


@pytest.fixture(scope="module")
def result():
    listener = Listener()
    settings = Settings(
        model="mlp",
        strategies=("mirrored", "one_device", "central_storage"),
        replicas=3,
        examples=40,
        epochs=2,
        batch_size=16,
        repeats=2,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "_MOST_EPOCHS_PER_ROUND", 2)
        return compare(settings, listener=listener), listener


def test_every_strategy_ends_with_the_weights_of_one_device(result):
    names = [measurement.strategy for measurement in result[0].measurements]
    assert names == ["mirrored", "one_device", "central_storage"]
    assert result[0].deviating == ()
    assert result[0].measurement("one_device").weight_difference == 0


def test_it_is_recorded_where_things_are(result):
    mirrored = result[0].measurement("mirrored")
    assert mirrored.replicas == 3
    assert mirrored.compute_devices == mirrored.variable_devices == ("CPU:0", "CPU:1", "CPU:2")
    assert result[0].measurement("central_storage").variable_devices == ("CPU:0",)


def test_numbers_of_examples_and_parameters(result):
    comparison, _ = result
    assert (comparison.train_examples, comparison.test_examples) == (40, 10)
    assert comparison.parameters == 16640 + 32896 + 1290
    assert comparison.examples_per_round % 40 == 0
    assert all(len(measurement.round_seconds) == 2 for measurement in comparison.measurements)


def test_the_listener_hears_of_every_step(result):
    _, listener = result
    # 40 examples in batches of 16 are 3 steps, two epochs; then 2 rounds of all four
    assert listener.begun == [
        ("prepare", 1),
        ("mirrored", 6),
        ("one_device", 6),
        ("central_storage", 6),
        ("mirrored on 2", 6),  # between one replica and three; to be timed
        ("timing", 8),
    ]
    assert listener.steps == 32
    assert len(listener.ended) == 6


def test_a_wrong_strategy_is_found_before_the_work():
    with pytest.raises(rx.errors.UsageError, match="No strategy"):
        compare(Settings(strategies=("one_device", "tpu")))


def processes_of(run):
    """The processes of this machine that have the mark of a run in their environment."""
    mark = f"REPLICAX_TEST_RUN={run}".encode()
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is another user's
            if mark in (process / "environ").read_bytes().split(b"\0"):
                found.append(process.name)
    return found


@pytest.mark.timeout(600)
def test_replicax_compare_with_workers_leaves_nobody_behind(tmp_path):
    command = [sys.executable, "-m", "replicax.launch", "compare", *SMALL, *OF_WORKERS]
    environ = {**os.environ, **WITH_PLOTS, "REPLICAX_TEST_RUN": str(tmp_path)}
    ran = completed(command, cwd=tmp_path, env=environ, seconds=540)
    assert ran.returncode == 0, ran.stderr
    assert "Every synchronous strategy ended with the weights of one device" in ran.stdout
    assert "parameter_server is asynchronous: no two of its runs are equal" in ran.stdout
    written = {file.name for file in (tmp_path / "report").iterdir()}
    assert written == {"report.html", "compare.json"}
    data = json.loads((tmp_path / "report" / "compare.json").read_text())
    measured = {m["strategy"]: m for m in data["measurements"]}
    assert [m["replicas"] for m in measured.values()] == [1, 2, 2]
    assert measured["parameter_server"]["weight_difference"] is None
    assert measured["multi_worker"]["variable_devices"] == ["worker 0", "worker 1"]
    # Ray's processes end a moment after the one that started them.
    wait_until(lambda: processes_of(tmp_path) == [], 60)


def test_ctrl_c_ends_replicax_compare_without_a_traceback(tmp_path):
    process = start_program(
        [sys.executable, "-m", "replicax.launch", "compare", "--output", tmp_path / "out"],
        env={**os.environ, **WITH_PLOTS},
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "prepare: loading data\n"
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=90)
    assert process.returncode == 130
    assert errors == "replicax: interrupted\n"
    with pytest.raises(ProcessLookupError):  # nobody is left in the group
        os.killpg(process.pid, 0)
