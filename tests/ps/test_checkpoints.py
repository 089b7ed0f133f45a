"""Checkpoints of variables on servers: whole, and for any other number of servers, or for none."""

from __future__ import annotations

import contextlib

import keras
import numpy as np
import pytest

import replicax as rx

Fixed = rx.experimental.partitioners.FixedShardsPartitioner
X = np.random.default_rng(0).normal(size=(24, 6)).astype("float32")
Y = X[:, :1] * 2 - 1
PLAIN, ONE, MANY = "plain", "one server", "three servers, cut in four"


@pytest.fixture
def made(started):
    """Makes a compiled model: in this process, or on servers."""

    def made(where):
        keras.backend.clear_session()
        scope = contextlib.nullcontext()
        if where == ONE:
            scope = started(servers=1, max_staleness=0).scope()
        elif where == MANY:
            scope = started(Fixed(4), servers=3, max_staleness=0).scope()
        keras.utils.set_random_seed(1)
        with scope:
            layers = [keras.Input((6,)), keras.layers.Dense(5, "tanh"), keras.layers.Dense(1)]
            model = keras.Sequential(layers)
            model.compile(keras.optimizers.Adam(0.05), "mse", metrics=["mae"])
        return model

    return made


def fit(model, epochs=1, **more):
    history = model.fit(X, Y, batch_size=8, epochs=epochs, shuffle=False, verbose=0, **more)
    return history.history


def state(model):
    return [np.array(v.value) for v in [*model.variables, *model.optimizer.variables]]


@pytest.mark.parametrize(("first", "second"), [(MANY, PLAIN), (PLAIN, MANY), (MANY, ONE)])
def test_a_checkpoint_goes_from_any_place_to_any_other(made, tmp_path, first, second):
    model = made(first)
    fit(model)
    path = rx.train.Checkpoint(model=model).save(tmp_path / "ckpt")
    saved = state(model)
    fit(model)
    other = made(second)
    rx.train.Checkpoint(model=other).restore(path)
    for mine, theirs in zip(state(other), saved, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    fit(other)
    for mine, theirs in zip(state(other), state(model), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-6)


def test_a_checkpoint_after_join_has_the_updates_of_all_closures(started, tmp_path):
    strategy = started(workers=2)
    with strategy.scope():
        counters = [keras.Variable(0.0, name=f"counter_{k}") for k in range(3)]
    coordinator = rx.coordinator.ClusterCoordinator(strategy)
    checkpoint = rx.train.Checkpoint(counters=counters)

    @rx.function
    def count():
        for counter in counters:
            counter.assign_add(1.0)

    for step in range(1, 4):
        for _ in range(10):
            coordinator.schedule(count)
        coordinator.join()
        path = checkpoint.save(tmp_path / "ckpt")
        assert [float(counter) for counter in counters] == [10.0 * step] * 3
    for _ in range(5):
        coordinator.schedule(count)
    coordinator.join()
    checkpoint.restore(path)
    coordinator.schedule(count)
    coordinator.join()
    assert [float(counter) for counter in counters] == [31.0] * 3


class Ends(keras.callbacks.Callback):
    """Ends the program in the middle of an epoch, as kill does: nothing more is saved."""

    def on_train_batch_end(self, batch, logs=None):
        if self.model.optimizer.iterations >= 5:
            raise KeyboardInterrupt


@pytest.mark.parametrize(("first", "second"), [(MANY, ONE), (ONE, PLAIN), (PLAIN, MANY)])
def test_fit_goes_on_where_the_program_was_killed(made, tmp_path, first, second):
    def backup():
        return rx.callbacks.BackupAndRestore(tmp_path, every_batches=2)

    reference = made(PLAIN)
    expected = fit(reference, 3)
    with pytest.raises(KeyboardInterrupt):
        fit(made(first), 3, callbacks=[backup(), Ends()])
    model = made(second)
    history = fit(model, 3, callbacks=[backup()])
    assert int(model.optimizer.iterations) == 9
    for name, values in expected.items():
        np.testing.assert_allclose(history[name], values, rtol=1e-4)
    for mine, theirs in zip(state(model), state(reference), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)
