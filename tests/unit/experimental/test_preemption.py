import itertools
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import keras
import pytest

import replicax as rx
from replicax._core.errors import UsageError
from replicax.experimental import PreemptionCheckpointHandler, TerminationConfig, _preemption

from channels import as_workers
from helpers import wait_until


class Training:
    """A variable that grows by 4 with each run, and a handler whose exit is an exception."""

    class Exited(Exception):
        pass

    def __init__(self, folder, **config):
        def leave():
            raise self.Exited

        self.value = keras.Variable(0.0, name="value")
        self.checkpoint = rx.train.Checkpoint(value=self.value)
        config = TerminationConfig(**{"exit_fn": leave, **config})
        self.handler = PreemptionCheckpointHandler(None, self.checkpoint, folder, config)

    def step(self):
        self.handler.run(self.value.assign_add, 4.0)

    def saved(self, folder):
        fresh = Training(folder)
        fresh.handler.close()
        return fresh.handler.total_run_calls, float(fresh.value)


def terminate():
    signal.raise_signal(signal.SIGTERM)


@pytest.fixture(autouse=True)
def _gives_the_signal_back():
    before = signal.getsignal(signal.SIGTERM)
    yield
    assert signal.getsignal(signal.SIGTERM) == before


PROGRAM = """
    import os, signal, sys
    import keras
    import replicax as rx

    with rx.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        value = keras.Variable(0.0, name="value")
    handler = rx.experimental.PreemptionCheckpointHandler(
        None, rx.train.Checkpoint(value=value), sys.argv[1]
    )
    print("restored", handler.total_run_calls, float(value))
    while handler.total_run_calls < 5:
        if handler.total_run_calls == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        handler.run(value.assign_add, 4.0)
        print("run", handler.total_run_calls)
    print("final", float(value))
"""


def test_as_in_tensorflow_the_step_after_the_signal_runs_and_is_saved(tmp_path):
    # SIGTERM after step 3: step 4 runs, is saved, exit 42; then run 5, and 20.0 at the end.
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(tmp_path)]
    first = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert first.returncode == 42, first.stderr
    assert first.stdout.split("\n")[:-1] == ["restored 0 0.0", "run 1", "run 2", "run 3", "run 4"]
    second = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert second.returncode == 0, second.stderr
    assert second.stdout.split("\n")[:-1] == ["restored 4 16.0", "run 5", "final 20.0"]


def test_the_folder_of_a_manager(tmp_path):
    manager = rx.train.CheckpointManager(rx.train.Checkpoint(), tmp_path, checkpoint_name="mine")
    handler = PreemptionCheckpointHandler(None, manager)
    terminate()
    handler.run(lambda: None)
    with pytest.raises(SystemExit, match="42"):
        handler.run(lambda: None)
    assert os.listdir(tmp_path) == ["mine-1"]


def test_a_grace_period_saves_twice(tmp_path):
    training = Training(tmp_path, grace_period=1)
    terminate()
    training.step()
    saves = []
    with pytest.raises(Training.Exited):
        while True:
            training.step()
            saves += [name for name in os.listdir(tmp_path) if name not in saves]
            time.sleep(0.01)
    assert saves == ["ckpt-1"]
    assert os.listdir(tmp_path) == ["ckpt-2"]
    runs, value = training.saved(tmp_path)
    assert runs > 1
    assert value == 4 * runs


def test_a_function_may_notice_and_another_may_save(tmp_path, monkeypatch):
    monkeypatch.setattr(_preemption, "_POLL_SECONDS", 0.01)
    told, saves = threading.Event(), []
    training = Training(
        tmp_path,
        termination_watcher_fn=told.is_set,
        save_fn=lambda: saves.append(training.handler.total_run_calls),
    )
    training.step()
    told.set()
    wait_until(lambda: training.handler._notice.received)
    training.step()
    with pytest.raises(Training.Exited):
        training.step()
    assert saves == [2]


def test_save_checkpoint_if_preempted(tmp_path):
    training = Training(tmp_path)
    for _ in range(3):
        training.handler.save_checkpoint_if_preempted()
    terminate()
    training.handler.save_checkpoint_if_preempted(100)
    with pytest.raises(Training.Exited):
        training.handler.save_checkpoint_if_preempted(100)
    assert os.listdir(tmp_path) == ["ckpt-100"]
    assert training.saved(tmp_path)[0] == 4


def test_the_end_of_a_watched_block(tmp_path):
    training = Training(tmp_path)
    with training.handler.watch_preemption_scope():
        training.step()
    assert os.listdir(tmp_path) == []
    with pytest.raises(Training.Exited), training.handler.watch_preemption_scope():
        terminate()
        training.step()
    assert training.saved(tmp_path) == (2, 8.0)


def test_all_workers_save_after_the_same_step(tmp_path, monkeypatch):
    monkeypatch.setattr(_preemption, "_POLL_SECONDS", 0.001)
    told = threading.Event()

    def work(index):
        # Only the second worker hears of it, at some moment.
        watcher = told.is_set if index == 1 else lambda: False
        training = Training(tmp_path, termination_watcher_fn=watcher)
        try:
            for step in itertools.count():
                if index == 1 and step == 5:
                    told.set()
                time.sleep(0.002)
                training.step()
        except Training.Exited:
            return training.handler.total_run_calls, float(training.value)
        finally:
            training.handler.close()

    results = as_workers(3, work)
    assert results[0] == results[1] == results[2]
    assert results[0][0] >= 6
    alone = Training(tmp_path)
    assert (alone.handler.total_run_calls, float(alone.value)) == results[0]
    alone.handler.close()


def test_the_watcher_hears_signals_and_agreements(tmp_path):
    watcher, training = rx.experimental.PreemptionWatcher(), Training(tmp_path)
    watcher.block_until_worker_exit()
    assert watcher.preemption_message is None
    terminate()
    assert "SIGTERM" in watcher.preemption_message
    watcher.close()
    other = rx.experimental.PreemptionWatcher()
    training.step()
    assert "A worker has to end" in other.preemption_message
    other.close()
    training.handler.close()


def test_a_manager_or_a_folder():
    for given, folder in (
        (rx.train.Checkpoint(), None),
        (rx.train.CheckpointManager(rx.train.Checkpoint(), "x"), "y"),
        (3, "y"),
    ):
        with pytest.raises(UsageError, match="checkpoint_dir="):
            PreemptionCheckpointHandler(None, given, folder)


def test_signals_need_the_main_thread(tmp_path):
    def work(index):
        Training(tmp_path)

    (error,) = as_workers(1, work)
    assert isinstance(error, UsageError)
    assert "Python handles SIGTERM in the main thread" in str(error)


def test_settings_are_checked():
    with pytest.raises(UsageError, match="`grace_period`"):
        TerminationConfig(grace_period=-1)
    with pytest.raises(UsageError, match="a function, not its result"):
        TerminationConfig(exit_fn=42)
