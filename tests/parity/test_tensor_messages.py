"""Arrays as bytes, with the bytes of TensorFlow."""

import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
import replicax.tf as tf


def test_the_bytes_are_those_of_tensorflow():
    found = tf.io.serialize_tensor(tf.constant([[1.0, 2.0]])).numpy()
    assert (
        found
        == b"\x08\x01\x12\x08\x12\x02\x08\x01\x12\x02\x08\x02\x22\x08"
        + np.array([1, 2], "<f4").tobytes()
    )
    assert tf.io.serialize_tensor("ab").numpy() == b"\x08\x07\x12\x00\x42\x02ab"


@pytest.mark.parametrize(
    "value",
    [np.float32(3), np.arange(200).reshape(2, 100), np.array([True, False]), jnp.ones([0, 3]),
     np.array([[1 + 2j]]), jnp.ones([2], "bfloat16")],
)  # fmt: skip
def test_arrays_come_back(value):
    found = tf.io.parse_tensor(tf.io.serialize_tensor(value), tf.as_dtype(value.dtype))
    assert found.dtype == value.dtype and found.shape == value.shape
    assert found.tolist() == value.tolist()


def test_texts_come_back():
    found = tf.io.parse_tensor(tf.io.serialize_tensor(["a", b"bc"]), tf.string)
    assert found.tolist() == [b"a", b"bc"]


def test_damaged_bytes_and_another_type_are_errors():
    data = tf.io.serialize_tensor([1.0, 2.0]).numpy()
    with pytest.raises(rx.errors.CorruptRecord):
        tf.io.parse_tensor(data[:-1], tf.float32)
    with pytest.raises(rx.errors.UsageError):
        tf.io.parse_tensor(data, tf.int32)
