"""Training under `replicax run` that is killed or told to end goes on as if it had not been."""

import json
import os
import shutil
import subprocess
import sys
from types import SimpleNamespace

import keras
import numpy as np
import pytest

from . import restarts

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Run a part of the program; give its folder, what it said, and what the workers have found."""

    def start(what, *options, workers=2, devices=1, begin=None, faults=""):
        folder = tmp_path_factory.mktemp(what)
        if begin is not None:
            shutil.copytree(begin, folder, dirs_exist_ok=True)
        restarts.write_files(folder)
        size = ["--workers", str(workers), "--devices-per-worker", str(devices)]
        program = [restarts.__file__, what, str(folder)]
        command = [sys.executable, "-m", "replicax.launch", "run", *size, *options, *program]
        env = {**os.environ, "FAULTS": faults}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=550)
        assert done.returncode == 0, done.stdout + done.stderr

        def found(name, of=range(workers)):
            texts = [(folder / f"{name}-{worker}.json").read_text() for worker in of]
            return [json.loads(text) for text in texts]

        return SimpleNamespace(folder=folder, said=done.stdout, told=done.stderr, found=found)

    return start


@pytest.fixture(scope="module")
def killed(run):
    # One step is of the first look at the data, 21 of the run that is not ended: the fourth step
    # of the second epoch is number 22 + 7 + 4.
    return run("killed", "--max-restarts", "2", faults="SIGKILL:1:33")


@pytest.fixture(scope="module")
def told(run):
    # 22 steps as above and 3 · 8 of the files; then 7 + 4, and 8 + 4 more.
    return run("told", "--max-restarts", "1", faults="SIGTERM:1:57 SIGTERM:1:69")


@pytest.fixture(scope="module")
def begun(run):
    return run("begun")


@pytest.fixture(scope="module")
def loop(run):
    return run("loop", "--max-restarts", "2", faults="SIGTERM:1:3")


def assert_close(found, expected, tolerance):
    assert found["epochs"] == expected["epochs"] == [0, 1, 2]
    for one, other in zip(found["weights"], expected["weights"], strict=True):
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)
    for name, values in expected["history"].items():
        np.testing.assert_allclose(found["history"][name], values, rtol=tolerance)


def test_fit_that_was_killed_gives_the_numbers_of_one_that_was_not(killed):
    whole = killed.found("whole")
    assert killed.found("resumed") == whole
    assert whole[0] == whole[1]
    assert_close(whole[0], restarts.fit("arrays", None, killed.folder), 1e-6)
    assert not (killed.folder / "backup").exists()
    assert "worker 1 (pid" in killed.told
    assert "restart 1 of 2" in killed.told
    assert "RX_JOIN=0" not in killed.told  # a warning names it if a worker trains alone


@pytest.mark.parametrize("kind", ["pipeline", "files"])
def test_fit_whose_worker_was_told_to_end_gives_the_numbers_of_one_that_was_not(told, kind):
    assert told.found(kind) == told.found(f"{kind}-whole")
    if kind == "pipeline":
        assert_close(told.found(kind)[0], restarts.fit(kind, None, told.folder), 1e-6)


def test_a_worker_that_was_told_to_end_has_all_started_again(told):
    assert len(list(told.folder.glob("made-SIGTERM:1:*"))) == 2
    assert "it has saved its state, to be started again (exit code 42)" in told.told
    assert "restart 1 of 1" in told.told


@pytest.mark.parametrize(("workers", "devices"), [(1, 2), (3, 1)])
def test_training_goes_on_by_another_number_of_workers(run, begun, workers, devices):
    again = run("gone_on", workers=workers, devices=devices, begin=begun.folder)
    for kind in ("arrays", "pipeline"):
        expected = restarts.fit(kind, None, again.folder)
        for found in again.found(kind):
            assert_close(found, expected, 1e-5)


def test_a_model_of_a_local_strategy_trains_and_saves_alone(begun):
    (found,) = begun.found("alone", of=[1])
    assert found["epochs"] == [0, 1, 2]
    assert (begun.folder / "alone.keras").exists()
    assert sorted(os.listdir(begun.folder / "alone")) == ["ckpt-2", "ckpt-3"]


def test_callbacks_of_keras_write_once_and_restore_everywhere(killed):
    folder = killed.folder / "keras"
    epochs = [f"epoch{number}.keras" for number in (1, 2, 3)]
    assert sorted(os.listdir(folder)) == [*epochs, "log.csv"]
    saved = [keras.models.load_model(folder / name).get_weights()[0].tolist() for name in epochs]
    assert killed.found("start2-epoch2") == [saved[1], saved[1]]
    assert killed.found("by_keras") == [saved[2], saved[2]]
    lines = (folder / "log.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["epoch", "0", "1", "2"]


def test_the_progress_is_printed_once(killed):
    titles = [line for line in killed.said.splitlines() if "Epoch " in line]
    assert titles == [f"[worker 0] Epoch {number}/3" for number in (1, 2, 3)]


def test_a_loop_that_is_told_to_end_makes_one_more_step_and_saves(loop):
    # The signal comes in step 3. Of each step, 2 replicas add 1.
    assert loop.found("calls0") == [4, 4]
    assert loop.found("handled") == [[4, 6 * 2.0]] * 2
    assert os.listdir(loop.folder / "handler") == ["ckpt-1"]
    assert "it has saved its state, to be started again (exit code 42)" in loop.told


def test_a_chief_that_dies_while_it_saves_leaves_the_checkpoint_before(loop):
    # Steps 1 to 3 are saved; 4 and 5 are made again.
    assert loop.found("saved") == [[3, 3.0, 5.0]] * 2
    assert sorted(os.listdir(loop.folder / "saves")) == ["ckpt-4", "ckpt-5"]
    assert "worker 0 (pid" in loop.told
