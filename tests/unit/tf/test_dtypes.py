"""Types of numbers: they are equal to NumPy's and JAX's, and taken where those are."""

import pickle

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax.tf as tf
from replicax._core.errors import UsageError


@pytest.mark.parametrize(
    "other", ["float32", np.float32, np.dtype("float32"), jnp.float32, float, tf.float32]
)
def test_a_type_equals_its_other_names(other):
    assert tf.float32 == other
    assert not tf.float64 == other  # noqa: SIM201
    assert tf.as_dtype(other) is tf.float32


def test_an_array_has_it_as_its_type():
    assert jnp.zeros(1).dtype == tf.float32
    assert np.zeros(1, "int64").dtype == tf.int64
    assert jnp.zeros(1, "bfloat16").dtype == tf.bfloat16


def test_a_number_is_the_type_that_protocol_buffers_give_it():
    assert [tf.as_dtype(number).name for number in (1, 3, 9, 14, 19)] == [
        *("float32", "int32", "int64", "bfloat16", "float16")
    ]
    assert tf.zeros(2, 1).dtype == tf.float32


def test_it_is_taken_as_dtype_everywhere():
    assert np.zeros(2, tf.int8).dtype == np.int8
    assert jnp.zeros(2, tf.bfloat16).dtype == jnp.bfloat16
    assert keras.ops.zeros(2, tf.float16).dtype == np.float16
    assert keras.layers.Dense(1, dtype=tf.float16).compute_dtype == "float16"
    assert np.float32(1).astype(tf.bool).dtype == bool


def test_what_it_says_of_itself():
    assert (tf.float32.name, tf.float32.size, tf.float32.as_numpy_dtype) == (
        "float32",
        4,
        np.float32,
    )
    assert (tf.uint8.min, tf.uint8.max, tf.bool.max) == (0, 255, True)
    assert float(tf.float16.max) == 65504
    assert tf.bfloat16.is_floating and tf.uint8.is_unsigned and tf.int32.is_integer
    assert tf.complex64.is_complex and tf.complex64.real_dtype == tf.float32
    assert tf.bool.is_bool and not tf.bool.is_integer
    assert (repr(tf.half), str(tf.double)) == ("tf.float16", "<dtype: 'float64'>")


def test_text_is_a_type():
    assert tf.string == str and tf.string == bytes  # noqa: E721
    assert np.zeros(1, tf.string).dtype == object


def test_copies_are_equal_and_hash_alike():
    copied = pickle.loads(pickle.dumps(tf.int32))
    assert copied == tf.int32
    assert {tf.int32: 1}[copied] == 1
    assert tf.dtypes.int32 is tf.int32


def test_text_has_no_limits():
    with pytest.raises(UsageError, match="real_dtype"):
        _ = tf.string.max


def test_other_things_are_no_types():
    with pytest.raises(TypeError, match="float7"):
        tf.as_dtype("float7")
    assert tf.float32 != "float7"
