"""What is left over of compressed gradients is in checkpoints; steps alone leave nothing."""

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

X = np.random.default_rng(0).normal(size=(40, 5)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


@pytest.fixture(autouse=True)
def two_devices(monkeypatch):
    monkeypatch.setattr(topology, "default_devices", lambda: jax.local_devices()[:2])


def mirrored(compression):
    return rx.MirroredStrategy(["CPU:0", "CPU:1"], compression=compression)


WAYS = {
    "bytes": lambda: mirrored("int8"),
    "steps alone": lambda: rx.MultiWorkerMirroredStrategy(sync_every=2),
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
    """Two variables, and an optimizer whose gradients travel as whole numbers up to 127.

    Those of both replicas are added up: a gradient of [127, 0.25] changes a variable by [-254, 0],
    and leaves over [0, 0.25].
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

    def have(self, *expected):
        for variable, values in zip(self.variables, expected, strict=True):
            np.testing.assert_allclose(variable.value, values, rtol=1e-6)


def test_a_loop_goes_on_with_what_is_left_over_of_each_variable(tmp_path):
    first = Pair(mirrored("int8"))
    first.apply(0, [127, 0.25])
    first.apply(1, [0.25, 127])
    path = first.checkpoint.write(tmp_path / "here")
    second = Pair(mirrored("int8"))
    second.checkpoint.read(path).assert_consumed()
    second.apply(1, [0, 0])  # in another order than before
    second.apply(0, [0, 0])
    second.have([-254, -0.5], [-0.5, -254])
    first.apply(0, [0, 0])
    first.apply(0, [127, 0.25])  # leaves over [0, 0.25], which is forgotten
    first.checkpoint.read(path)
    first.have([-254, 0], [0, -254])
    first.apply(0, [0, 0])
    first.have([-254, -0.5], [0, -254])


def test_without_what_fits_it_begins_with_zeros(tmp_path):
    one = Pair(mirrored("int8"))
    empty = one.checkpoint.write(tmp_path / "empty")
    one.apply(0, [127, 0.25])
    path = one.checkpoint.write(tmp_path / "here")
    one.checkpoint.read(empty)
    one.apply(0, [0, 0])
    one.have([0, 0], [0, 0])
    three = Pair(rx.MirroredStrategy(["CPU:0", "CPU:1", "CPU:2"], compression="int8"))
    three.checkpoint.read(path)
    three.apply(0, [0, 0])
    three.have([-254, 0], [0, 0])
    exact = Pair(rx.MirroredStrategy(["CPU:0", "CPU:1"]))
    exact.checkpoint.read(path).assert_consumed()
    exact.have([-254, 0], [0, 0])


def test_what_was_read_is_written_again_before_a_step(tmp_path):
    first = Pair(mirrored("int8"))
    first.apply(0, [127, 0.25])
    first.apply(1, [0.25, 127])
    path = first.checkpoint.write(tmp_path / "first")
    for name in ("before a step", "after one"):
        again = Pair(mirrored("int8"))
        again.checkpoint.read(path)
        if name == "after one":
            again.apply(0, [0, 0])
        path = again.checkpoint.write(tmp_path / name)
    last = Pair(mirrored("int8"))
    last.checkpoint.read(path)
    last.apply(0, [0, 0])
    last.apply(1, [0, 0])
    last.have([-254, -0.5], [-0.5, -254])


def test_variables_that_keras_has_counted_anew_are_told_apart(tmp_path):
    first, second = Pair(mirrored("int8")), Pair(mirrored("int8"))
    for number, variable in enumerate((*first.variables, *second.variables)):
        # dense_1 and dense_2, then dense_2 and dense_3.
        _compat.set_path(variable, f"dense_{1 + number - number // 2}/kernel")
    first.apply(1, [0.25, 127])
    second.checkpoint.read(first.checkpoint.write(tmp_path / "first"))
    second.apply(0, [0, 0])
    second.checkpoint.read(second.checkpoint.write(tmp_path / "second"))
    second.apply(1, [0, 0])
    second.have([0, 0], [-0.5, -254])
