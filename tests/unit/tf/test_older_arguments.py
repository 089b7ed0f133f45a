"""Arguments of optimizers and shapes of targets that Keras 2 took, under `replicax.tf.keras`."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import replicax.tf as tf


def test_lr_is_the_learning_rate():
    optimizer = tf.keras.optimizers.legacy.SGD(lr=0.5)
    assert float(optimizer.learning_rate.numpy()) == 0.5


def test_decay_divides_by_one_and_the_updates():
    optimizer = tf.keras.optimizers.legacy.SGD(lr=0.4, decay=1.0)
    variable = keras.Variable(0.0)
    values = []
    for _ in range(3):
        optimizer.apply([keras.ops.ones(())], [variable])
        values.append(float(variable.value))
    # 0.4, then 0.4 / 2, then 0.4 / 3
    np.testing.assert_allclose(values, [-0.4, -0.6, -0.6 - 0.4 / 3], rtol=1e-6)


def test_an_argument_that_is_none_is_refused_as_before():
    with pytest.raises(ValueError, match="not recognized: {'rate'"):
        keras.optimizers.SGD(rate=1.0)


def test_one_target_is_that_of_all_outputs_of_a_row():
    model = tf.keras.Sequential([keras.Input((1,)), keras.layers.Dense(2, "linear", True, "ones")])
    model.compile(loss="mse")
    # Outputs (1, 1) and (3, 3) for targets 0 and 1: squares 1, 1, 4, 4.
    found = model.evaluate(np.array([[1.0], [3.0]]), np.array([0.0, 1.0]), verbose=0)
    assert found == pytest.approx(2.5)


def test_classes_stay_flat():
    model = tf.keras.Sequential(
        [keras.Input((1,)), keras.layers.Dense(2, kernel_initializer="zeros")]
    )
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    found = model.evaluate(np.ones((2, 1)), np.array([0, 1]), verbose=0)
    assert found == pytest.approx(np.log(2))
