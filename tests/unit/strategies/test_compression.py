"""Training with compressed gradients comes to where training without comes, by `run` and `fit`."""

from __future__ import annotations

import jax
import keras
import numpy as np
import pytest

import replicax as rx
from replicax._core import topology

TopK = rx.experimental.compression.TopK


@pytest.fixture(autouse=True)
def two_devices(monkeypatch):
    monkeypatch.setattr(topology, "default_devices", lambda: jax.local_devices()[:2])


def strategy_with(compression):
    options = rx.experimental.CommunicationOptions(compression=compression)
    return rx.MultiWorkerMirroredStrategy(communication_options=options)


def data(rows=96):
    random = np.random.default_rng(0)
    x = random.normal(size=(rows, 20)).astype("float32")
    return x, (x @ random.normal(size=(20, 3))).argmax(1).astype("int32")


def classifier(strategy):
    with strategy.scope():
        keras.utils.set_random_seed(0)
        model = keras.Sequential(
            [keras.Input((20,)), keras.layers.Dense(16, activation="tanh"), keras.layers.Dense(3)]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.2, momentum=0.5), loss, metrics=["accuracy"])
    return model


def looped(strategy, *, epochs, rows, count=96):
    """The loss of the last epoch, and the weights."""
    model, (x, y) = classifier(strategy), data(count)

    def step(batch):
        def loss():
            return model.loss(batch[1], model(batch[0], training=True))

        value, gradients = rx.value_and_grad(loss, model)()
        model.optimizer.apply(gradients, model.trainable_variables)
        return rx.get_replica_context().all_reduce("SUM", value)

    train = rx.function(lambda batch: strategy.run(step, args=(batch,)))
    batches = [(x[i : i + rows], y[i : i + rows]) for i in range(0, len(x), rows)]
    dataset = strategy.experimental_distribute_dataset(batches)
    for _ in range(epochs):
        losses = [float(train(batch)) for batch in dataset]
    return np.mean(losses), model.get_weights()


@pytest.fixture(scope="module")
def plain():
    return looped(rx.OneDeviceStrategy("CPU:0"), epochs=6, rows=32)


@pytest.mark.parametrize(("compression", "far"), [("int8", 0.02), (TopK(0.1), 0.15)])
def test_a_loop_comes_to_the_loss_of_one_without(plain, compression, far):
    loss, weights = looped(strategy_with(compression), epochs=6, rows=32)
    assert loss == pytest.approx(plain[0], abs=far)
    differences = [np.abs(a - b).max() for a, b in zip(weights, plain[1], strict=True)]
    assert max(differences) > 0  # it was compressed


def test_replicas_of_different_rows_keep_what_is_left_over():
    expected, _ = looped(strategy_with(None), epochs=1, rows=27, count=54)
    loss, _ = looped(strategy_with("int8"), epochs=1, rows=27, count=54)
    assert loss == pytest.approx(expected, abs=0.02)


def test_fit_trains_by_run():
    (x, y), plain = data(), classifier(rx.OneDeviceStrategy("CPU:0"))
    small = classifier(strategy_with("bf16"))
    how = {"batch_size": 32, "epochs": 2, "shuffle": False, "verbose": 0}
    expected = plain.fit(x, y, validation_data=(x, y), **how).history
    found = small.fit(x, y, validation_data=(x, y), **how).history
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert found[name] == pytest.approx(values, abs=0.03)
    assert not np.array_equal(plain.get_weights()[0], small.get_weights()[0])
    small.set_weights(plain.get_weights())
    predicted = plain.predict(x[:9], verbose=0)  # on more or fewer replicas
    np.testing.assert_allclose(small.predict(x[:9], verbose=0), predicted, atol=1e-5)
    assert small.evaluate(x, y, verbose=0) == pytest.approx(plain.evaluate(x, y, verbose=0))
