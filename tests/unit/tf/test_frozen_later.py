"""Layers frozen after `compile`: a model trains what was trainable when it was compiled."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

import replicax.tf as tf

X = np.arange(8, dtype="float32").reshape(4, 2)
ROWS_SUMMED = X.sum(0)  # 12, 16


def scope(name):
    """Where a model is made: in no scope, or in that of two replicas."""
    if name == "alone":
        return contextlib.nullcontext()
    return tf.distribute.MirroredStrategy(["cpu:0", "cpu:1"]).scope()


def critic():
    return tf.keras.Sequential(
        [tf.keras.Input((2,)), tf.keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")]
    )


@pytest.mark.parametrize("where", ["alone", "mirrored"])
def test_each_model_trains_what_was_trainable_when_it_was_compiled(where):
    with scope(where):
        discriminator = critic()
        discriminator.compile(tf.keras.optimizers.SGD(0.1), _mean_output)
        discriminator.trainable = False
        generator = tf.keras.layers.Dense(2, use_bias=False, kernel_initializer="identity")
        inputs = tf.keras.Input((2,))
        both = tf.keras.Model(inputs, discriminator(generator(inputs)))
        both.compile(tf.keras.optimizers.SGD(0.1), _mean_output)
    discriminator.train_on_batch(X, X[:, :1])
    trained = 1 - 0.1 * ROWS_SUMMED[:, None] / 4  # 0.7, 0.6
    np.testing.assert_allclose(discriminator.get_weights()[0], trained, rtol=1e-6)
    both.train_on_batch(X, X[:, :1])
    np.testing.assert_allclose(discriminator.get_weights()[0], trained, rtol=1e-6)
    expected = np.eye(2) - 0.1 * np.outer(ROWS_SUMMED, trained) / 4
    np.testing.assert_allclose(generator.get_weights()[0], expected, rtol=1e-6)
    assert not discriminator.trainable_weights  # as the program has set it


def _mean_output(y_true, y_pred):
    return tf.reduce_mean(y_pred, axis=-1)


def test_batch_normalization_takes_the_means_of_batches_as_it_was_compiled():
    model = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.BatchNormalization()])
    model.compile(tf.keras.optimizers.SGD(0.0), "mse")
    model.layers[0].trainable = False
    model.fit(X, X, batch_size=4, verbose=0)
    moving_mean = model.layers[0].moving_mean
    np.testing.assert_allclose(moving_mean, 0.01 * X.mean(0), rtol=1e-5)


def test_compiling_again_takes_what_is_trainable_now():
    model = critic()
    model.compile(tf.keras.optimizers.SGD(0.1), _mean_output)
    model.trainable = False
    model.compile(tf.keras.optimizers.SGD(0.1), _mean_output)
    model.train_on_batch(X, X[:, :1])
    np.testing.assert_array_equal(model.get_weights()[0], [[1], [1]])


def test_what_was_frozen_when_it_was_compiled_stays_so():
    layer = tf.keras.layers.Dense(2, use_bias=False, kernel_initializer="identity")
    layer.trainable = False
    model = tf.keras.Sequential([tf.keras.Input((2,)), layer, *critic().layers])
    model.compile(tf.keras.optimizers.SGD(0.1), _mean_output)
    layer.trainable = True
    model.fit(X, X[:, :1], batch_size=4, verbose=0)
    np.testing.assert_array_equal(layer.get_weights()[0], np.eye(2))
    assert layer.trainable
