"""The tape and its companions under TensorFlow's names."""

from __future__ import annotations

import jax.numpy as jnp
import keras
import pytest

import replicax as rx
import replicax.tf as tf
from replicax._tape.custom_gradient import recompute_grad

TWO = jnp.float32(2.0)


def test_they_are_the_same_objects():
    assert tf.GradientTape is rx.GradientTape
    assert tf.custom_gradient is rx.custom_gradient
    assert tf.recompute_grad is recompute_grad
    assert tf.UnconnectedGradients.ZERO.value == "zero"


def test_stop_gradient():
    w = keras.Variable(3.0)
    with tf.GradientTape() as tape:
        tape.watch(TWO)
        x, y = tf.stop_gradient((TWO, w), name="held")
        z = x * y * w + TWO
    # x·y by w, and 1
    assert [float(g) for g in tape.gradient(z, [w, TWO])] == [6.0, 1.0]


@pytest.mark.parametrize(
    ("name", "instead"), [("gradients", "Use `tf.GradientTape`"), ("hessians", "jax.hessian")]
)
def test_what_is_not_there_says_what_to_use(name, instead):
    with pytest.raises(AttributeError, match=instead):
        getattr(tf, name)
