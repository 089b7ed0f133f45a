"""`fit`, `evaluate` and `predict` give one device's result under every strategy.

The reference is plain Keras on one device, without a strategy. Variants of `fit` (callbacks,
mixed precision, other inputs) are in test_fit_variants.py.
"""

import functools
import itertools

import jax
import keras
import numpy as np
import pytest

import replicax as rx
from replicax.testing import MATRIX

from fitting import ROWS, TARGETS, dense_net, made, weight_difference

SAMPLE = np.random.default_rng(7)
X = SAMPLE.normal(size=(101, 8, 8, 1)).astype("float32")
Y = SAMPLE.integers(0, 10, 101).astype("int32")  # Keras without a strategy warns of 64 bits

SEVERAL = ("one_device", "mirrored_3", "central_storage_4")


def conv_net(optimizer="sgd"):
    """Conv, BatchNorm, Dropout and Dense; no bias before BatchNorm: its gradient is noise."""
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(6, 3, use_bias=False),
            keras.layers.BatchNormalization(),
            keras.layers.ReLU(),
            keras.layers.Dropout(0.3),
            keras.layers.Flatten(),
            keras.layers.Dense(10),
        ]
    )
    chosen = {"sgd": keras.optimizers.SGD(0.05, momentum=0.9), "adam": keras.optimizers.Adam(1e-3)}
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(chosen[optimizer], loss, metrics=["accuracy"])
    return model


def fitted(strategy, batch_size, optimizer, epochs):
    model = made(strategy, functools.partial(conv_net, optimizer))
    keras.utils.set_random_seed(11)
    history = model.fit(X, Y, batch_size=batch_size, epochs=epochs, verbose=0, shuffle=True)
    return model, history.history


@functools.cache
def fitted_by_one_device(batch_size, epochs):
    return fitted(None, batch_size, "sgd", epochs)


def trained(strategy, batch_size, optimizer, epochs):
    model, history = fitted(strategy, batch_size, optimizer, epochs)
    return model, {
        "history": history,
        "evaluate": model.evaluate(X, Y, batch_size=7, verbose=0),
        "predict": model.predict(X, batch_size=13, verbose=0),
        "predict one": model.predict(X[:1], verbose=0),
    }


@functools.cache
def reference(batch_size, optimizer, epochs):
    model, result = trained(None, batch_size, optimizer, epochs)
    return model.get_weights(), result


def assert_same_run(strategy, batch_size, optimizer, epochs, tolerance):
    model, result = trained(strategy, batch_size, optimizer, epochs)
    expected_weights, expected = reference(batch_size, optimizer, epochs)
    assert weight_difference(model.get_weights(), expected_weights) <= tolerance
    for name, values in expected["history"].items():
        np.testing.assert_allclose(result["history"][name], values, rtol=10 * tolerance)
    np.testing.assert_allclose(result["evaluate"], expected["evaluate"], rtol=10 * tolerance)
    for name in ("predict", "predict one"):
        assert result[name].shape == expected[name].shape
        scale = np.abs(expected[name]).max()
        np.testing.assert_allclose(result[name], expected[name], atol=10 * tolerance * scale)


@pytest.mark.parametrize("name", ["default", "multi_worker_8", *SEVERAL])
def test_core_twenty_steps_of_sgd_equal_one_device(name):
    # 101 rows in batches of 16: 6 full batches and one of 5; three epochs are 21 steps.
    assert_same_run(MATRIX[name](), 16, "sgd", 3, tolerance=1e-5)


@pytest.mark.parametrize("name", SEVERAL)
def test_core_twenty_steps_of_adam_equal_one_device(name):
    assert_same_run(MATRIX[name](), 16, "adam", 3, tolerance=1e-4)


@pytest.mark.core
@pytest.mark.parametrize(
    ("name", "batch_size"),
    [
        *itertools.product(["mirrored_3"], [2, 10, 500]),
        ("multi_worker_8", 5),
        ("central_storage_3", 2),
    ],
)
def test_any_batch_size_equals_one_device(name, batch_size):
    # 2 rows on 3 replicas, 5 on 8: fewer rows than replicas, at every step.
    epochs = 1 if batch_size < 16 else 3
    model, history = fitted(MATRIX[name](), batch_size, "sgd", epochs)
    expected_model, expected = fitted_by_one_device(batch_size, epochs)
    assert weight_difference(model.get_weights(), expected_model.get_weights()) <= 2e-5
    for metric, values in expected.items():
        np.testing.assert_allclose(history[metric], values, rtol=2e-4)


def test_core_predict_keeps_every_row_in_order(mirrored):
    with mirrored.scope():
        inputs = keras.Input((1,))
        model = keras.Model(inputs, inputs * 2.0)
    x = np.arange(11, dtype="float32")[:, None]
    for batch_size in (1, 2, 3, 4, 11, 32):
        np.testing.assert_array_equal(model.predict(x, batch_size=batch_size, verbose=0), 2 * x)


@pytest.mark.parametrize("name", SEVERAL)
def test_core_on_batch_methods_equal_one_device(name):
    results = []
    for strategy in (None, MATRIX[name]()):
        model = made(strategy, dense_net)
        losses = [model.train_on_batch(ROWS[:n], TARGETS[:n]) for n in (8, 7, 1)]
        losses.append(model.test_on_batch(ROWS[:5], TARGETS[:5]))
        results.append((losses, model.predict_on_batch(ROWS[:3])))
    np.testing.assert_allclose(results[1][0], results[0][0], rtol=1e-5)
    np.testing.assert_allclose(results[1][1], results[0][1], rtol=1e-5)


def test_fit_works_inside_and_outside_the_scope(mirrored):
    inside, outside = made(mirrored, dense_net), made(mirrored, dense_net)
    with mirrored.scope():
        inside.fit(ROWS, TARGETS, batch_size=9, verbose=0, shuffle=False)
    outside.fit(ROWS, TARGETS, batch_size=9, verbose=0, shuffle=False)
    for a, b in zip(inside.get_weights(), outside.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_optimizer_compiled_outside_the_scope_is_adopted(mirrored):
    with mirrored.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(), "mse")
    model.fit(ROWS, TARGETS, batch_size=10, verbose=0)
    assert all(len(v.value.devices()) == 2 for v in [*model.variables, *model.optimizer.variables])


def test_variables_live_where_the_strategy_says():
    model = made(rx.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:5"), dense_net)
    model.fit(ROWS, TARGETS, batch_size=10, verbose=0)
    homes = {device.id for v in model.variables for device in v.value.devices()}
    assert homes == {5}


@pytest.mark.parametrize("rows", [12, 13])
@pytest.mark.parametrize("name", ["mirrored_3", "central_storage_3"])
def test_core_each_device_computes_its_share(name, rows):
    """Also of a batch that the replicas do not divide, which XLA splits unevenly."""
    layouts = []

    class Spy(keras.layers.Layer):
        def call(self, x):
            jax.debug.inspect_array_sharding(x, callback=layouts.append)
            return x

    def make():
        model = keras.Sequential([keras.Input((4,)), Spy(), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        return model

    model = made(MATRIX[name](), make)
    model.fit(ROWS[:rows], TARGETS[:rows], batch_size=rows, verbose=0)
    assert layouts
    for layout in layouts:
        assert len(layout.device_set) == 3
        assert not layout.is_fully_replicated
        if rows == 12:
            assert layout.shard_shape((12, 4)) == (4, 4)


@pytest.mark.parametrize("target", [None, "mirrored_3", "central_storage_2", "one_device"])
def test_saved_model_continues_under_another_strategy(target, mirrored, tmp_path):
    model = made(mirrored, functools.partial(dense_net, optimizer="adam"))
    model.fit(ROWS, TARGETS, batch_size=10, verbose=0, shuffle=False)
    model.save(tmp_path / "model.keras")
    strategy = MATRIX[target]() if target else None
    loaded = made(strategy, lambda: keras.models.load_model(tmp_path / "model.keras"))
    for one in (model, loaded):
        one.fit(ROWS, TARGETS, batch_size=10, verbose=0, shuffle=False)
    assert weight_difference(loaded.get_weights(), model.get_weights()) <= 1e-5
    assert int(loaded.optimizer.iterations.value) == 6


def test_weights_load_into_a_model_of_another_strategy(mirrored, tmp_path):
    first, second = made(mirrored, dense_net), made(MATRIX["central_storage_3"](), dense_net)
    first.fit(ROWS, TARGETS, verbose=0)
    first.save_weights(tmp_path / "w.weights.h5")
    second.load_weights(tmp_path / "w.weights.h5")
    assert weight_difference(second.get_weights(), first.get_weights()) == 0


def test_two_strategies_train_in_turn_in_one_process():
    names = ("mirrored_2", "mirrored_3", "central_storage_2")
    models = [made(MATRIX[name](), dense_net) for name in names]
    plain = dense_net()
    for _ in range(3):
        for model in (*models, plain):
            model.fit(ROWS, TARGETS, batch_size=10, verbose=0, shuffle=False)
    for model in models:
        assert weight_difference(model.get_weights(), plain.get_weights()) <= 1e-5
