"""Keras' convolutions with `relu`: in one where oneDNN is used, else as Keras has them."""

from __future__ import annotations

import jax
import keras
import numpy as np
import pytest

from replicax._core import cpu_tuning
from replicax._fit.hooks import install_hooks
from replicax._keras import rectified as of_rectified

install_hooks()
IMAGES = np.random.default_rng(0).normal(size=(2, 6, 6, 4)).astype("float32")


@pytest.fixture
def with_kernel(monkeypatch):
    """As if oneDNN were installed: the programs are only looked at, or XLA's."""
    monkeypatch.setattr(of_rectified, "library", object)
    before = cpu_tuning.parts_on()
    cpu_tuning.choose_parts(frozenset({"convolutions"}))
    yield
    cpu_tuning.choose_parts(before)


def is_one(layer, inputs):
    return "rx_rectified_convolution" in str(jax.make_jaxpr(layer)(inputs))


def stock(layer, inputs):
    return type(layer).call._replicax_original(layer, inputs)


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        (keras.layers.Conv2D, {}),
        (keras.layers.Conv2D, {"strides": (2, 1), "padding": "same"}),
        (keras.layers.Conv2D, {"dilation_rate": 2, "groups": 2}),
        (keras.layers.Conv1D, {"strides": 2, "padding": "same"}),
    ],
)
def test_the_layer_gives_what_it_gave(with_kernel, kind, how):
    layer = kind(6, 3, activation="relu", bias_initializer="normal", **how)
    inputs = IMAGES if kind is keras.layers.Conv2D else IMAGES[:, 0]
    layer.build(inputs.shape)
    assert is_one(layer, inputs)
    np.testing.assert_allclose(layer(inputs), stock(layer, inputs), rtol=1e-5, atol=1e-5)


class Scaled(keras.layers.Conv2D):
    def convolution_op(self, inputs, kernel):
        return 2 * super().convolution_op(inputs, kernel)


@pytest.mark.parametrize(
    "make",
    [
        lambda: keras.layers.Conv2D(6, 3, activation="tanh"),
        lambda: keras.layers.Conv2D(6, 3),
        lambda: keras.layers.Conv2D(6, 3, activation="relu", use_bias=False),
        lambda: keras.layers.Conv2D(6, 3, activation="relu", data_format="channels_first"),
        lambda: keras.layers.Conv2D(6, 3, activation="relu", dtype="mixed_bfloat16"),
        lambda: Scaled(6, 3, activation="relu"),
    ],
    ids=["tanh", "none", "no bias", "channels first", "bfloat16", "an operation of one's own"],
)
def test_others_are_keras_own(with_kernel, make):
    layer = make()
    layer.build(IMAGES.shape)
    assert not is_one(layer, IMAGES)


def test_sequences_that_only_look_back_are_keras_own(with_kernel):
    layer = keras.layers.Conv1D(6, 3, activation="relu", padding="causal")
    layer.build(IMAGES[:, 0].shape)
    assert not is_one(layer, IMAGES[:, 0])


def test_without_the_part_it_is_keras_own(with_kernel):
    cpu_tuning.choose_parts(frozenset())
    layer = keras.layers.Conv2D(6, 3, activation="relu")
    layer.build(IMAGES.shape)
    assert not is_one(layer, IMAGES)


def test_keras_decides_about_what_does_not_fit(with_kernel):
    layer = keras.layers.Conv2D(6, 7, activation="relu")
    layer.build((None, 9, 9, 4))

    def outcome():  # an error, or in older Keras an empty result
        try:
            return layer.call(jax.numpy.ones((2, 6, 6, 4))).shape
        except ValueError as error:
            return str(error)

    found = outcome()
    cpu_tuning.choose_parts(frozenset())
    assert found == outcome()
