"""`ReplicaMonitor`: what it writes, and when."""

import json
import threading
from types import SimpleNamespace

import keras
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util import tensor_util

from replicax._core.errors import UsageError
from replicax._core.machine.nvidia import NoAnswerError
from replicax.callbacks import ReplicaMonitor, _monitor
from replicax.callbacks._monitor import GpuLoad

from fitting import ROWS, TARGETS, dense_net, made

X = np.random.default_rng(0).normal(size=(21, 3)).astype("float32")
QUIET = {"verbose": 0, "shuffle": False, "batch_size": 8}


def linear(strategy, **compiling):
    """The sum of the inputs, which is trained to be zero and stays as it is."""

    def make():
        layer = keras.layers.Dense(1, kernel_initializer="ones", dtype="float32")
        model = keras.Sequential([keras.Input((3,)), layer])
        model.compile(**{"optimizer": keras.optimizers.SGD(0.0), "loss": "mse", **compiling})
        return model

    return made(strategy, make)


def lines_of(folder, kind):
    lines = map(json.loads, (folder / "monitor.jsonl").read_text().splitlines())
    return [line for line in lines if line["kind"] == kind]


def curve(folder, tag):
    reader = EventAccumulator(str(folder / "monitor"), size_guidance={"tensors": 0})
    reader.Reload()
    return {e.step: float(tensor_util.make_ndarray(e.tensor_proto)) for e in reader.Tensors(tag)}


def test_figures_are_in_the_file_in_the_history_and_on_the_board(mirrored, tmp_path):
    history = linear(mirrored).fit(X, 0 * X[:, :1], callbacks=[ReplicaMonitor(tmp_path)], **QUIET)
    (epoch,) = lines_of(tmp_path, "epoch")
    assert (epoch["epoch"], epoch["step"]) == (0, 3)
    assert history.history["examples_per_second"] == [epoch["examples_per_second"]]
    assert curve(tmp_path, "epoch/data_wait") == {3: pytest.approx(epoch["data_wait"])}


def test_training_is_what_it_is_without(mirrored, tmp_path):
    def weights(callbacks):
        model = made(mirrored, lambda: dense_net(steps_per_execution=2))
        data = {"batch_size": 6, "epochs": 2, "verbose": 0, "shuffle": False}
        history = model.fit(ROWS, TARGETS, callbacks=callbacks, **data).history
        return history["loss"], model.get_weights()

    loss, plain = weights([])
    watched, same = weights([ReplicaMonitor(tmp_path, every=2)])
    assert loss == watched
    for one, other in zip(plain, same, strict=True):
        np.testing.assert_array_equal(one, other)
    # 5 steps an epoch, two at once. What they are compared with are the first two of it.
    assert [line["step"] for line in lines_of(tmp_path, "steps")] == [4, 9]
    assert [line["step"] for line in lines_of(tmp_path, "epoch")] == [5, 10]


def test_steps_that_are_left_out_because_a_gradient_is_not_finite(mirrored, tmp_path):
    inner = keras.optimizers.SGD(0.0)
    model = linear(
        mirrored, optimizer=keras.optimizers.LossScaleOptimizer(inner, initial_scale=8.0)
    )
    x = X[:16].copy()
    x[12, 0] = np.inf
    monitor = ReplicaMonitor(tmp_path, tensorboard=False)
    history = model.fit(x, 0 * X[:16, :1], epochs=2, callbacks=[monitor], **QUIET).history
    assert history["skipped_steps"] == [1, 1]
    assert not (tmp_path / "monitor").exists()


def test_the_bar_does_not_say_it_twice(mirrored, tmp_path, capsys):
    model = linear(mirrored)
    monitor = ReplicaMonitor(tmp_path, tensorboard=False)
    model.fit(X, X[:, :1], callbacks=[monitor], **{**QUIET, "verbose": 2})
    line = capsys.readouterr().out
    assert "ex/s" in line
    assert "examples_per_second" not in line


def test_a_fit_that_fails_is_not_watched_any_more(mirrored, tmp_path):
    model = linear(mirrored)

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            raise KeyError("stop")

    monitor = ReplicaMonitor(tmp_path, every=1)
    with pytest.raises(KeyError, match="stop"):
        model.fit(X, X[:, :1], callbacks=[monitor, Stop()], **QUIET)
    model.fit(X, X[:, :1], **QUIET)
    assert lines_of(tmp_path, "epoch") == []


def test_a_number_of_steps_is_positive():
    with pytest.raises(UsageError, match="`every`.* 0"):
        ReplicaMonitor(every=0)


def test_a_model_of_no_strategy_is_refused(tmp_path):
    with pytest.raises(UsageError, match="strategy.scope"):
        linear(None).fit(X, X[:, :1], callbacks=[ReplicaMonitor(tmp_path)], **QUIET)


def test_memory_and_use_of_gpus_are_in_the_lines_of_epochs(mirrored, tmp_path, monkeypatch):
    stats = {"bytes_in_use": 5, "peak_bytes_in_use": 7, "bytes_limit": 9, "num_allocs": 1}
    gpus = [SimpleNamespace(platform="gpu", memory_stats=lambda: stats) for _ in range(2)]
    monkeypatch.setattr(_monitor, "jax", SimpleNamespace(local_devices=lambda: gpus))
    monkeypatch.setattr(_monitor, "GpuLoad", lambda: GpuLoad(0.01))
    monkeypatch.setattr(_monitor.nvidia, "utilization", lambda: [0.5, None])
    linear(mirrored).fit(X, X[:, :1], callbacks=[ReplicaMonitor(tmp_path)], **QUIET)
    (epoch,) = lines_of(tmp_path, "epoch")
    assert epoch["memory_bytes"] == [5, 5]
    assert epoch["peak_memory_bytes"] == [7, 7]
    assert epoch["memory_limit_bytes"] == [9, 9]
    assert epoch["gpu_utilization"] == [0.5, None]
    assert curve(tmp_path, "epoch/gpu_utilization/0") == {3: 0.5}


def test_a_driver_that_says_nothing_is_asked_once(monkeypatch):
    asked = threading.Semaphore(0)

    def fails():
        asked.release()
        raise NoAnswerError

    monkeypatch.setattr(_monitor.nvidia, "utilization", fails)
    load = GpuLoad(0.001)
    assert asked.acquire(timeout=10)
    assert not asked.acquire(timeout=0.1)
    assert load.mean() == []
    load.close()
