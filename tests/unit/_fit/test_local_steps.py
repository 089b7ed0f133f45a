"""Replicas that train alone for some steps and then take the mean: against plain NumPy."""

import jax
import keras
import numpy as np
import pytest

import replicax as rx
from replicax._core import topology
from replicax._core.errors import UsageError
from replicax._core.reduce import SyncGroup

ROWS, BATCH, RATE = 24, 4, 0.1


@pytest.fixture(autouse=True)
def two_devices(monkeypatch):
    monkeypatch.setattr(topology, "default_devices", lambda: jax.local_devices()[:2])


def data(rows=ROWS):
    random = np.random.default_rng(0)
    return (random.normal(size=(rows, n)).astype("float32") for n in (2, 1))


def linear(optimizer=None, *more, **how):
    with rx.MultiWorkerMirroredStrategy(**how).scope():
        layers = [keras.layers.Dense(1, use_bias=False, kernel_initializer="ones"), *more]
        model = keras.Sequential([keras.Input((2,)), *layers])
        model.compile(optimizer or keras.optimizers.SGD(RATE), "mse")
    return model


def fit(model, rows=ROWS, **how):
    x, y = data(rows)
    return model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0, **how).history


def by_hand(every):
    """The weights of two replicas, and the mean of their losses; half of each batch is of one."""
    x, y = data()
    batches = [(x[i : i + BATCH], y[i : i + BATCH]) for i in range(0, ROWS, BATCH)]
    weights, losses = np.ones((2, 1)), []
    for begin in range(0, len(batches), every):
        found = []
        for rows in (slice(0, 2), slice(2, 4)):
            own = weights.copy()
            for features, labels in batches[begin : begin + every]:
                error = features[rows] @ own - labels[rows]
                losses.append(np.mean(error**2))
                own -= RATE * 2 * features[rows].T @ error / 2
            found.append(own)
        weights = np.mean(found, axis=0)
    return weights, np.mean(losses)


@pytest.mark.parametrize("every", [3, 4])
def test_they_take_the_mean_of_what_they_came_to(every):
    model = linear(sync_every=every)
    history = fit(model)
    weights, loss = by_hand(every)
    np.testing.assert_allclose(model.get_weights()[0], weights, rtol=1e-5)
    np.testing.assert_allclose(history["loss"], [loss], rtol=1e-5)
    assert int(model.optimizer.iterations) == 6
    assert model.steps_per_execution == 1  # as it was


def test_gradients_do_not_travel(monkeypatch):
    found = []
    original = SyncGroup.all_reduce

    def all_reduce(self, op, value, options=None):
        found.append((op.value, len(value)))
        return original(self, op, value, options)

    monkeypatch.setattr(SyncGroup, "all_reduce", all_reduce)
    fit(linear(keras.optimizers.SGD(RATE, momentum=0.9), sync_every=3))
    # The kernel, its momentum and the learning rate; the number of steps.
    assert set(found) == {("SUM", 3), ("SUM", 1)}


def test_statistics_random_numbers_and_other_batches():
    """Nine rows: two batches of one shape, and one row, which one of the replicas has."""
    more = keras.layers.BatchNormalization(momentum=0.5), keras.layers.Dropout(0.5)
    model = linear(keras.optimizers.Adam(), *more, sync_every=4)
    assert np.isfinite(fit(model, rows=9, epochs=2)["loss"]).all()
    assert all(np.isfinite(weight).all() for weight in model.get_weights())
    assert int(model.optimizer.iterations) == 6
    for variable in (*model.variables, *model.optimizer.variables):
        copies = [np.asarray(shard.data) for shard in variable.value.addressable_shards]
        np.testing.assert_array_equal(copies[0], copies[1])


def test_a_step_of_the_users_own_with_a_loss_scale():
    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")

        def call(self, x):
            return self.dense(x)

        def train_step(self, state, batch):
            logs, state = super().train_step(state, batch)
            return {"mine": logs["loss"]}, state

    strategy = rx.MultiWorkerMirroredStrategy(sync_every=3)
    with strategy.scope():
        model = Own()
        scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(RATE), initial_scale=8.0)
        model.compile(scaled, "mse")
    fit(model)
    np.testing.assert_allclose(model.get_weights()[0], by_hand(3)[0], rtol=1e-5)


def test_evaluation_is_that_of_one_device():
    x, y = data()
    model, plain = (
        linear(sync_every=3),
        keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]),
    )
    fit(model)
    plain.set_weights([model.get_weights()[0], np.zeros(1)])
    np.testing.assert_allclose(model.predict(x, verbose=0), plain.predict(x, verbose=0), rtol=1e-5)
    expected = np.mean((np.asarray(plain.predict(x, verbose=0)) - y) ** 2)
    np.testing.assert_allclose(model.evaluate(x, y, verbose=0), expected, rtol=1e-5)


@pytest.mark.parametrize("every", [0, 2.5, None])
def test_the_number_of_steps_is_a_whole_one(every):
    with pytest.raises(UsageError, match="`sync_every` must be"):
        rx.MultiWorkerMirroredStrategy(sync_every=every)


def test_what_stays_is_not_compressed():
    options = rx.experimental.CommunicationOptions(compression="int8")
    with pytest.raises(UsageError, match="compression='int8' with sync_every=2"):
        rx.MultiWorkerMirroredStrategy(communication_options=options, sync_every=2)


def test_an_execution_ends_with_a_meeting():
    model = linear(sync_every=3)
    model.steps_per_execution = 4
    with pytest.raises(UsageError, match="multiple of sync_every=3"):
        fit(model)
    model.steps_per_execution = 6
    fit(model)
    np.testing.assert_allclose(model.get_weights()[0], by_hand(3)[0], rtol=1e-5)
