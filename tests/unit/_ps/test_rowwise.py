"""Optimizers of rows against Keras' own, over several steps."""

import keras
import numpy as np
import pytest

from replicax._ps.variables.shard_optimizer import rowwise_optimizer

SETTINGS = {
    "sgd": keras.optimizers.SGD(0.1),
    "momentum": keras.optimizers.SGD(0.1, momentum=0.9),
    "nesterov": keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "adagrad": keras.optimizers.Adagrad(0.1),
    "adagrad from zero": keras.optimizers.Adagrad(0.1, initial_accumulator_value=0.0),
    "adam": keras.optimizers.Adam(0.01),
    "adam, own betas": keras.optimizers.Adam(0.01, beta_1=0.5, beta_2=0.9, epsilon=1e-3),
    "ftrl": keras.optimizers.Ftrl(0.1),
    "ftrl, regularised": keras.optimizers.Ftrl(
        0.1,
        l1_regularization_strength=0.01,
        l2_regularization_strength=0.02,
        l2_shrinkage_regularization_strength=0.03,
        beta=0.1,
    ),
}


def keras_steps(optimizer, values, gradients):
    """Run Keras' stateless form; returns the values and the slots before and after each step."""
    optimizer = type(optimizer).from_config(optimizer.get_config())
    optimizer.build([keras.Variable(values)])
    state, values = [variable.value for variable in optimizer.variables], [values]
    yield np.asarray(values[0]), [np.array(slot) for slot in state[2:]]
    for gradient in gradients:
        values, state = optimizer.stateless_apply(state, [gradient], values)
        yield np.asarray(values[0]), [np.asarray(slot) for slot in state[2:]]


@pytest.mark.parametrize("optimizer", SETTINGS.values(), ids=SETTINGS)
def test_rows_are_updated_as_by_keras(optimizer):
    random = np.random.default_rng(0)
    values = random.standard_normal((7, 5)).astype(np.float32)
    gradients = random.standard_normal((6, 7, 5)).astype(np.float32)
    ours = rowwise_optimizer(type(optimizer).__name__, optimizer.get_config())
    expected = keras_steps(optimizer, values, gradients)
    mine, (_, slots) = values.copy(), next(expected)
    for step, (wanted, wanted_slots) in enumerate(expected):
        ours(mine, gradients[step], slots, step, float(optimizer.learning_rate))
        np.testing.assert_allclose(mine, wanted, atol=1e-6)
        for slot, wanted_slot in zip(slots, wanted_slots, strict=True):
            np.testing.assert_allclose(slot, wanted_slot, rtol=1e-5, atol=1e-6)
    assert mine.dtype == np.float32


def test_a_rate_that_changes_is_that_of_each_step():
    ours = rowwise_optimizer("SGD", keras.optimizers.SGD().get_config())
    values = np.zeros((1, 1), np.float32)
    for step, rate in enumerate([0.5, 0.25]):
        ours(values, np.ones((1, 1)), [], step, rate)
    assert values.tolist() == [[-0.75]]


@pytest.mark.parametrize(
    "optimizer",
    [
        keras.optimizers.RMSprop(),
        keras.optimizers.AdamW(),
        keras.optimizers.Adam(amsgrad=True),
        keras.optimizers.Adam(weight_decay=0.01),
        keras.optimizers.SGD(clipnorm=1.0),
        keras.optimizers.SGD(clipvalue=1.0),
        keras.optimizers.SGD(global_clipnorm=1.0),
        keras.optimizers.SGD(use_ema=True),
        keras.optimizers.SGD(loss_scale_factor=2.0),
        keras.optimizers.SGD(gradient_accumulation_steps=2),
        keras.optimizers.Ftrl(learning_rate_power=-0.3),
    ],
)
def test_others_have_no_rowwise_form(optimizer):
    assert rowwise_optimizer(type(optimizer).__name__, optimizer.get_config()) is None


def test_half_precision_has_no_rowwise_form():
    config = keras.optimizers.SGD().get_config()
    assert rowwise_optimizer("SGD", config, "float16") is None
    assert rowwise_optimizer("SGD", config, "float64") is not None
