"""A GPU gives the numbers of a CPU: `fit`, custom loops, tapes, rows of tables, uneven batches."""

import functools
from itertools import product

import jax
import keras
import numpy as np
import pytest

import replicax as rx
import replicax.tf as tf

from .cases import BATCH, DEVICE, GPUS, LABELS, NUMBERS, PAIRS, STRATEGIES, WORDS, compiled, trained
from fitting import made, weight_difference
from helpers import assert_trees_close

TOLERANCE = 1e-5
WAYS = {"function": tf.function, "eager": lambda fn: fn}


@functools.cache
def on_cpu(name):
    """In `float32`, whatever is tested."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("float32")
    try:
        with jax.default_matmul_precision("highest"):
            return trained(rx.OneDeviceStrategy("CPU:0"), name)
    finally:
        keras.config.set_dtype_policy(before)


@pytest.mark.parametrize(("name", "strategy"), PAIRS)
def test_training_gives_what_a_cpu_gives(name, strategy):
    weights, told = trained(STRATEGIES[strategy](), name)
    expected, expected_told = on_cpu(name)
    assert weight_difference(weights, expected) <= TOLERANCE
    assert_trees_close(told, expected_told, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("steps", [2, 3] if GPUS else [3])
def test_several_steps_in_a_program(steps):
    weights, _ = trained(rx.OneDeviceStrategy(DEVICE), "convolutions", steps_per_execution=steps)
    assert weight_difference(weights, on_cpu("convolutions")[0]) <= TOLERANCE


def looped(strategy, function):
    """Weights and losses of a custom loop in TensorFlow's words."""
    with strategy.scope():
        model = compiled("attention")
        optimizer = tf.keras.optimizers.SGD(0.05)
        optimizer.build(model.trainable_variables)
        losses = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)

    def step(inputs, labels):
        with tf.GradientTape() as tape:
            found = losses(labels, model(inputs, training=True))
            loss = tf.nn.compute_average_loss(found, global_batch_size=BATCH)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @function
    def train_step(inputs, labels):
        return strategy.reduce("SUM", strategy.run(step, args=(inputs, labels)), axis=None)

    dataset = tf.data.Dataset.from_tensor_slices((WORDS, LABELS)).batch(BATCH)
    distributed = strategy.experimental_distribute_dataset(dataset)
    return [float(train_step(*batch)) for batch in distributed], model.get_weights()


@pytest.mark.parametrize(
    ("strategy", "way"),
    [*product(("one_device", "mirrored", "central_storage"), WAYS)]
    if GPUS
    else [("mirrored", "function"), ("central_storage", "eager")],
)
def test_a_loop_with_a_tape_gives_what_a_cpu_gives(strategy, way):
    losses, weights = looped(STRATEGIES[strategy](), WAYS[way])
    expected_losses, expected = looped(rx.OneDeviceStrategy("CPU:0"), tf.function)
    np.testing.assert_allclose(losses, expected_losses, rtol=1e-5)
    assert weight_difference(weights, expected) <= TOLERANCE


def test_a_table_is_trained_as_on_a_cpu():
    """Rows that occur move, and no others."""

    def rows(strategy):
        def make():
            keras.utils.set_random_seed(1)
            model = keras.Sequential(
                [
                    keras.Input((10,), dtype="int32"),
                    rx.layers.ShardedEmbedding(1000, 8),
                    keras.layers.GlobalAveragePooling1D(),
                    keras.layers.Dense(1),
                ]
            )
            model.compile(keras.optimizers.SGD(0.1), "mse")
            return model

        model = made(strategy, make)
        before = model.get_weights()[0]
        model.fit(WORDS, NUMBERS[:, :1], batch_size=BATCH, verbose=0, shuffle=False)
        return before, model.get_weights()

    before, weights = rows(rx.OneDeviceStrategy(DEVICE))
    _, expected = rows(rx.OneDeviceStrategy("CPU:0"))
    assert weight_difference(weights, expected) <= TOLERANCE
    assert not np.array_equal(weights[0][:50], before[:50])
    np.testing.assert_array_equal(weights[0][50:], before[50:])


def test_central_storage_keeps_variables_on_the_cpu():
    strategy = STRATEGIES["central_storage"]()
    model = made(strategy, functools.partial(compiled, "mlp"))
    model.fit(NUMBERS, LABELS, batch_size=BATCH, verbose=0)
    homes = {device.platform for v in model.variables for device in v.value.devices()}
    assert homes == {"cpu"}


@pytest.mark.skipif(len(GPUS) != 1, reason="needs a machine with one GPU")
def test_a_gpu_that_is_not_there_is_named():
    with pytest.raises(rx.errors.UnknownDevice, match="GPU:0"):
        rx.OneDeviceStrategy("GPU:1")
    with pytest.raises(rx.errors.UnknownDevice):
        rx.MirroredStrategy(["GPU:0", "GPU:1"])


def test_a_checkpoint_goes_from_the_device_to_a_cpu(tmp_path):
    model = made(rx.OneDeviceStrategy(DEVICE), functools.partial(compiled, "mlp"))
    model.fit(NUMBERS, LABELS, batch_size=BATCH, verbose=0)
    model.save(tmp_path / "model.keras")
    with rx.OneDeviceStrategy("CPU:0").scope():
        other = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(
        other.predict(NUMBERS, verbose=0), model.predict(NUMBERS, verbose=0), rtol=1e-5, atol=1e-6
    )
