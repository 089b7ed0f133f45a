"""Initial values in a scope are Keras' own, and few programs draw them."""

from __future__ import annotations

import logging

import jax
import keras
import numpy as np
import pytest

import replicax as rx

K = keras.initializers
INITIALIZERS = {
    "glorot_uniform": lambda: K.GlorotUniform(3),
    "he_normal": lambda: K.HeNormal(4),
    "untruncated": lambda: K.VarianceScaling(2.0, "fan_out", "untruncated_normal", 9),
    "uniform": lambda: K.RandomUniform(-0.3, 0.1, 8),
    "normal": lambda: K.RandomNormal(0.3, 0.05, 6),
    "truncated_normal": lambda: K.TruncatedNormal(0.1, 0.7, 7),
    "seed generator": lambda: K.RandomUniform(-0.5, 0.5, keras.random.SeedGenerator(3)),
    "no seed": lambda: K.LecunNormal(),
    "zeros": lambda: K.Zeros(),
    "ones": lambda: K.Ones(),
    "constant": lambda: K.Constant(2.5),
    "function": lambda: lambda shape, dtype: np.full(shape, 7, dtype),
}
SHAPES = [(), (3,), (3, 3, 5, 7), (300, 240)]


@pytest.mark.parametrize("name", INITIALIZERS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_initial_values_in_a_scope_equal_those_of_keras(name, dtype):
    for shape in SHAPES:
        keras.utils.set_random_seed(1)
        expected = np.asarray(INITIALIZERS[name]()(shape, dtype=dtype))
        keras.utils.set_random_seed(1)
        with rx.OneDeviceStrategy("CPU:0").scope():
            variable = keras.Variable(INITIALIZERS[name](), shape=shape, dtype=dtype)
        np.testing.assert_array_equal(np.asarray(variable.value), expected, strict=True)


def test_one_program_draws_for_many_shapes(caplog):
    def compiled():
        texts = [record.getMessage() for record in caplog.records]
        return sum("Finished XLA compilation of jit(_uniform)" in text for text in texts)

    with jax.log_compiles(), caplog.at_level(logging.WARNING):
        for rows in (59, 60):  # Keras alone
            K.RandomUniform(seed=1)((rows, 17))
        assert compiled() == 2
        with rx.MirroredStrategy(2).scope():
            for number in range(8):
                keras.Variable(K.RandomUniform(seed=1), shape=(61 + number, 17))
    assert compiled() <= 3


class Doubled(K.RandomUniform):
    def __call__(self, shape, dtype=None):
        return 2 * super().__call__(shape, dtype)


@pytest.mark.parametrize("make", [lambda: Doubled(seed=1), lambda: K.RandomUniform(seed=1)])
def test_own_initializers_and_large_variables_are_drawn_as_keras_draws_them(make):
    shape = (2049, 2048)  # more numbers than the longest draw
    with rx.OneDeviceStrategy("CPU:0").scope():
        variable = keras.Variable(make(), shape=shape)
    np.testing.assert_array_equal(np.asarray(variable.value), np.asarray(make()(shape)))
