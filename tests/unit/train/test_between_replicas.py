"""What replicas keep for each other is in checkpoints: left-overs of gradients, outer momenta."""

from __future__ import annotations

import contextlib
import signal

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
from replicax._core import topology
from replicax._keras import _compat
from replicax._keras.local_steps import outer_optimizer_of

TopK = rx.experimental.compression.TopK
X = np.random.default_rng(0).normal(size=(40, 5)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


@pytest.fixture(autouse=True)
def two_devices(monkeypatch):
    monkeypatch.setattr(topology, "default_devices", lambda: jax.local_devices()[:2])


def mirrored(compression):
    return rx.MirroredStrategy(["CPU:0", "CPU:1"], compression=compression)


def diloco():
    outer = keras.optimizers.SGD(0.7, momentum=0.9, nesterov=True)
    return rx.MultiWorkerMirroredStrategy(sync_every=2, outer_optimizer=outer)


WAYS = {
    "bytes": lambda: mirrored("int8"),
    "the largest": lambda: mirrored(TopK(0.2)),
    "steps alone": diloco,
}


class Ended(Exception):
    pass


def leave():
    raise Ended


class EndInTheMiddle(keras.callbacks.Callback):
    """Ends the program by SIGTERM after some batches of the second epoch."""

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_begin(self, batch, logs=None):
        if (self.epoch, batch) == (1, 4):
            signal.raise_signal(signal.SIGTERM)


def trained(way, folder=None, *, ends=False):
    """Weights and losses of a strategy, model and optimizer of its own, as after a restart."""
    with WAYS[way]().scope():
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.05, momentum=0.5), "mse")
    callbacks = [EndInTheMiddle()] if ends else []
    if folder is not None:
        callbacks.append(rx.callbacks.BackupAndRestore(folder, exit_fn=leave))
    with pytest.raises(Ended) if ends else contextlib.nullcontext():
        model.fit(X, Y, batch_size=4, epochs=3, verbose=0, callbacks=callbacks)
    return model.get_weights(), model.history.history


@pytest.mark.parametrize("way", WAYS)
def test_a_run_that_was_ended_comes_to_what_it_would_have_come_to(tmp_path, way):
    expected, history = trained(way)
    trained(way, tmp_path, ends=True)
    found, resumed = trained(way, tmp_path)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
    assert resumed == history


class Pair:
    """Two variables, and an optimizer that gets half of the gradients' numbers, the largest.

    Those of both replicas are added up: a gradient of [3, 1] changes a variable by [-6, 0], and
    leaves over [0, 1].
    """

    def __init__(self, strategy):
        self._strategy = strategy
        with strategy.scope():
            self.variables = [keras.Variable(np.zeros(2, "float32"), name=n) for n in "ab"]
            self.optimizer = keras.optimizers.SGD(1.0)
            self.optimizer.build(self.variables)
        self.checkpoint = rx.train.Checkpoint(optimizer=self.optimizer, variables=self.variables)

    def apply(self, index, gradient):
        given = jnp.array(gradient, "float32")
        self._strategy.run(lambda: self.optimizer.apply([given], [self.variables[index]]))

    def values(self):
        return [variable.value.tolist() for variable in self.variables]


def test_a_loop_goes_on_with_what_is_left_over_of_each_variable(tmp_path):
    first = Pair(mirrored(TopK(0.5)))
    first.apply(0, [3, 1])
    first.apply(1, [1, 4])
    path = first.checkpoint.write(tmp_path / "here")
    second = Pair(mirrored(TopK(0.5)))
    second.checkpoint.read(path).assert_consumed()
    second.apply(1, [0, 0])  # in another order than before
    second.apply(0, [0, 0])
    assert second.values() == [[-6, -2], [-2, -8]]
    first.apply(0, [0, 0])
    first.apply(0, [5, 3])  # leaves over [0, 3], which is forgotten
    first.checkpoint.read(path)
    assert first.values() == [[-6, 0], [0, -8]]
    first.apply(0, [0, 0])
    assert first.values() == [[-6, -2], [0, -8]]


def test_without_what_fits_it_begins_with_zeros(tmp_path):
    one = Pair(mirrored(TopK(0.5)))
    empty = one.checkpoint.write(tmp_path / "empty")
    one.apply(0, [3, 1])
    path = one.checkpoint.write(tmp_path / "here")
    one.checkpoint.read(empty)
    one.apply(0, [0, 0])
    assert one.values() == [[0, 0], [0, 0]]
    three = Pair(rx.MirroredStrategy(["CPU:0", "CPU:1", "CPU:2"], compression=TopK(0.5)))
    three.checkpoint.read(path)
    three.apply(0, [0, 0])
    assert three.values() == [[-6, 0], [0, 0]]
    exact = Pair(rx.MirroredStrategy(["CPU:0", "CPU:1"]))
    exact.checkpoint.read(path).assert_consumed()
    assert exact.values() == [[-6, 0], [0, 0]]


def test_what_was_read_is_written_again_before_a_step(tmp_path):
    first = Pair(mirrored(TopK(0.5)))
    first.apply(0, [3, 1])
    first.apply(1, [1, 4])
    path = first.checkpoint.write(tmp_path / "first")
    for name in ("before a step", "after one"):
        again = Pair(mirrored(TopK(0.5)))
        again.checkpoint.read(path)
        if name == "after one":
            again.apply(0, [0, 0])
        path = again.checkpoint.write(tmp_path / name)
    last = Pair(mirrored(TopK(0.5)))
    last.checkpoint.read(path)
    last.apply(0, [0, 0])
    last.apply(1, [0, 0])
    assert last.values() == [[-6, -2], [-2, -8]]


def test_variables_that_keras_has_counted_anew_are_told_apart(tmp_path):
    first, second = Pair(mirrored(TopK(0.5))), Pair(mirrored(TopK(0.5)))
    for number, variable in enumerate((*first.variables, *second.variables)):
        # dense_1 and dense_2, then dense_2 and dense_3.
        _compat.set_path(variable, f"dense_{1 + number - number // 2}/kernel")
    first.apply(1, [1, 4])
    second.checkpoint.read(first.checkpoint.write(tmp_path / "first"))
    second.apply(0, [0, 0])
    second.checkpoint.read(second.checkpoint.write(tmp_path / "second"))
    second.apply(1, [0, 0])
    assert second.values() == [[0, 0], [-2, -8]]


def test_an_outer_optimizer_is_left_out_or_begins_anew(tmp_path):
    def saving(strategy):
        with strategy.scope():
            model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(1)])
            model.compile(keras.optimizers.SGD(0.05), "mse")
        return model, rx.train.Checkpoint(model=model)

    _, alone = saving(mirrored(None))
    model, checkpoint = saving(diloco())
    model.fit(X, Y, batch_size=4, verbose=0)
    outer = outer_optimizer_of(model)
    alone.read(checkpoint.write(tmp_path / "with")).assert_consumed()
    assert any(np.any(momentum.numpy()) for momentum in outer.momentums)
    checkpoint.read(alone.write(tmp_path / "without")).assert_consumed()
    assert not any(np.any(momentum.numpy()) for momentum in outer.momentums)
    assert int(outer.iterations) == 0
    assert float(outer.learning_rate) == pytest.approx(0.7)
