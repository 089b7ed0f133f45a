"""`ReplicaMonitor`: what it writes, and that the numbers are those of NumPy."""

from __future__ import annotations

import json

import keras
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.util import tensor_util

import replicax as rx
from replicax._core.errors import UsageError
from replicax.callbacks import ReplicaMonitor

from fitting import ROWS, TARGETS, dense_net, made

X = np.random.default_rng(0).normal(size=(21, 3)).astype("float32")
X[8:] *= 3  # the second replica's rows of the second batch, among others
QUIET = {"verbose": 0, "shuffle": False, "batch_size": 8}


def linear(strategy, **compiling):
    """The sum of the inputs, which is trained to be zero and stays as it is."""

    def make():
        layer = keras.layers.Dense(1, kernel_initializer="ones", dtype="float32")
        model = keras.Sequential([keras.Input((3,)), layer])
        model.compile(**{"optimizer": keras.optimizers.SGD(0.0), "loss": "mse", **compiling})
        return model

    return made(strategy, make)


def norm(rows):
    """The gradient of the mean of (Σx + b)², for a kernel of ones and b = 0."""
    slope = 2 * rows.sum(axis=1) / len(rows)
    return np.sqrt(np.square(rows.T @ slope).sum() + slope.sum() ** 2)


def lines_of(folder, kind):
    lines = map(json.loads, (folder / "monitor.jsonl").read_text().splitlines())
    return [line for line in lines if line["kind"] == kind]


def curve(folder, tag):
    reader = EventAccumulator(str(folder / "monitor"), size_guidance={"tensors": 0})
    reader.Reload()
    return {e.step: float(tensor_util.make_ndarray(e.tensor_proto)) for e in reader.Tensors(tag)}


def test_the_gradient_of_each_replica(mirrored, tmp_path):
    model = linear(mirrored)
    monitor = ReplicaMonitor(tmp_path, gradients_every=1)
    history = model.fit(X, 0 * X[:, :1], callbacks=[monitor], **QUIET).history
    # The last batch has 5 rows, which the replicas do not divide: it is left out.
    expected = [[norm(X[:4]), norm(X[4:8])], [norm(X[8:12]), norm(X[12:16])]]
    found = lines_of(tmp_path, "gradients")
    assert [line["step"] for line in found] == [0, 1]
    assert [line["gradient_norms"] for line in found] == [
        pytest.approx(e, rel=1e-5) for e in expected
    ]
    for line, norms in zip(found, expected, strict=True):
        assert line["gradient_imbalance"] == pytest.approx(max(norms) / np.mean(norms), rel=1e-5)
        assert curve(tmp_path, "gradients/gradient_norms/1")[line["step"]] == pytest.approx(
            norms[1]
        )
    # Of an epoch: the means of the replicas.
    means = np.mean(expected, axis=0)
    assert history["gradient_imbalance"] == [pytest.approx(max(means) / np.mean(means), rel=1e-5)]
    (epoch,) = lines_of(tmp_path, "epoch")
    assert (epoch["epoch"], epoch["step"]) == (0, 3)
    assert history["examples_per_second"] == [epoch["examples_per_second"]]
    assert curve(tmp_path, "epoch/data_wait") == {3: pytest.approx(epoch["data_wait"])}


def test_training_is_what_it_is_without(mirrored, tmp_path):
    def weights(callbacks):
        model = made(mirrored, lambda: dense_net(steps_per_execution=2))
        data = {"batch_size": 6, "epochs": 2, "verbose": 0, "shuffle": False}
        history = model.fit(ROWS, TARGETS, callbacks=callbacks, **data).history
        return history["loss"], model.get_weights()

    loss, plain = weights([])
    watched, same = weights([ReplicaMonitor(tmp_path, every=2, gradients_every=1)])
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
    monitor = ReplicaMonitor(tmp_path, gradients_every=1, tensorboard=False)
    history = model.fit(x, 0 * X[:16, :1], epochs=2, callbacks=[monitor], **QUIET).history
    assert history["skipped_steps"] == [1, 1]
    first, second = (line["gradient_norms"] for line in lines_of(tmp_path, "gradients")[:2])
    assert first == pytest.approx([norm(x[:4]), norm(x[4:8])], rel=1e-5)  # without the scale
    assert second == [pytest.approx(norm(x[8:12]), rel=1e-5), None]
    # Only finite ones have a mean.
    assert lines_of(tmp_path, "epoch")[0]["gradient_imbalance"] == pytest.approx(
        max(first) / np.mean(first)
    )
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

    monitor = ReplicaMonitor(tmp_path, gradients_every=1)
    with pytest.raises(KeyError, match="stop"):
        model.fit(X, X[:, :1], callbacks=[monitor, Stop()], **QUIET)
    model.fit(X, X[:, :1], **QUIET)
    assert lines_of(tmp_path, "gradients") == []  # the epoch did not end


@pytest.mark.parametrize("name", ["every", "gradients_every"])
def test_a_number_of_steps_is_positive(name):
    with pytest.raises(UsageError, match=f"positive number of steps. Received: {name}=0"):
        ReplicaMonitor(**{name: 0})


def test_a_model_of_no_strategy_is_refused(tmp_path):
    with pytest.raises(UsageError, match="watches the replicas of a strategy. Received: `fit`"):
        linear(None).fit(X, X[:, :1], callbacks=[ReplicaMonitor(tmp_path)], **QUIET)


def test_replicas_that_make_steps_of_their_own_have_no_gradients_to_compare(tmp_path):
    options = rx.experimental.CommunicationOptions(compression="int8")
    strategy = rx.MultiWorkerMirroredStrategy(communication_options=options)
    monitor = ReplicaMonitor(tmp_path, gradients_every=1)
    with pytest.raises(UsageError, match="one gradient of the whole batch"):
        linear(strategy).fit(X, X[:, :1], callbacks=[monitor], **QUIET)


def test_a_step_without_gradients_is_refused(mirrored, tmp_path):
    class Idle(keras.Sequential):
        def train_step(self, state, data):
            return {"loss": 0.0 * state[0][0].sum()}, state

    with mirrored.scope():
        model = Idle([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    with pytest.raises(UsageError, match="does not call `self.optimizer.stateless_apply`"):
        model.fit(X, X[:, :1], callbacks=[ReplicaMonitor(tmp_path, gradients_every=1)], **QUIET)
