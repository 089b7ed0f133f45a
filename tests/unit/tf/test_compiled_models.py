"""Models that share layers or an optimizer: what each trains is settled when it is compiled."""

import contextlib
import gc

import numpy as np
import pytest

import replicax.tf as tf
from replicax._core.errors import UsageError

X = np.arange(8, dtype="float32").reshape(4, 2)
ROWS_SUMMED = X.sum(0)  # 12, 16
RECORDED = [0.85707688, 0.92374635]  # of TensorFlow 2.21 with tf_keras


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
    np.testing.assert_allclose(model.layers[0].moving_mean, 0.01 * X.mean(0), rtol=1e-5)


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


@pytest.mark.parametrize("where", ["alone", "mirrored"])
def test_two_models_share_an_optimizer(where):
    with scope(where):
        optimizer = tf.keras.optimizers.Adam(0.1)
        models = [critic() for _ in range(2)]
        for model in models:
            model.compile(optimizer, _mean_output)
    for model in (*models, *models):
        model.train_on_batch(X, X[:, :1])
        optimizer.learning_rate = 0.05
    # Of the legacy Adam of Keras 2, whose count goes on from model to model.
    for model, expected in zip(models, RECORDED, strict=True):
        np.testing.assert_allclose(model.get_weights()[0][:, 0], [expected] * 2, rtol=1e-5)
    assert optimizer.iterations == 4


def test_a_new_model_goes_on_with_an_optimizer():
    optimizer = tf.keras.optimizers.SGD(0.1, momentum=0.9)
    for _ in range(2):
        model = critic()
        model.compile(optimizer, _mean_output)
        model.fit(X, X[:, :1], batch_size=4, verbose=0)
        np.testing.assert_allclose(model.get_weights()[0], [[0.7], [0.6]], rtol=1e-5)
        del model
        gc.collect()
    assert optimizer.iterations == 2


def test_compiling_again_keeps_momenta():
    optimizer = tf.keras.optimizers.SGD(0.1, momentum=0.5)
    others, model = critic(), critic()
    others.compile(optimizer, _mean_output)
    for _ in range(2):
        model.compile(optimizer, _mean_output)
        model.fit(X, X[:, :1], batch_size=4, verbose=0)
    moved = 0.1 * (1 + 1.5) * ROWS_SUMMED / 4
    np.testing.assert_allclose(model.get_weights()[0][:, 0], 1 - moved, rtol=1e-5)


def test_one_optimizer_for_a_layer_in_two_models_is_refused():
    optimizer, shared = tf.keras.optimizers.SGD(0.1), critic()
    models = [tf.keras.Sequential([tf.keras.Input((2,)), shared]) for _ in range(2)]
    for model in models:
        model.compile(optimizer, _mean_output)
    models[0].train_on_batch(X, X[:, :1])
    with pytest.raises(UsageError):
        models[1].train_on_batch(X, X[:, :1])


def test_a_model_with_a_shared_optimizer_is_saved_with_its_state(tmp_path):
    optimizer = tf.keras.optimizers.Adam(0.1)
    models = [critic() for _ in range(2)]
    for model in models:
        model.compile(optimizer, "mse")
        model.fit(X, X[:, :1], batch_size=4, verbose=0)
    models[1].save(tmp_path / "model.keras")
    loaded = tf.keras.models.load_model(tmp_path / "model.keras")
    assert loaded.optimizer.iterations == 2
    for found, kept in zip(loaded.optimizer.variables, models[1].optimizer.variables, strict=True):
        np.testing.assert_array_equal(found, kept)


def test_an_optimizer_that_cannot_be_copied_is_kept():
    class Special(tf.keras.optimizers.SGD):
        def __init__(self, special):
            super().__init__(special)

    optimizer = Special(0.1)
    for _ in range(2):
        model = critic()
        model.compile(optimizer, "mse")
        assert model.optimizer is optimizer
