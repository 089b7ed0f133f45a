"""Gradients through a compiled function that a tape records: our kernels have no derivatives."""

from __future__ import annotations

import jax
import numpy as np
import pytest

import replicax as rx
import replicax.tf as tf

DRAW = np.random.default_rng(0)
ROWS = DRAW.normal(size=(2048, 16)).astype("float32")
IMAGES = DRAW.normal(size=(4, 16, 16, 16)).astype("float32")
KERNEL = DRAW.normal(size=(3, 3, 16, 16)).astype("float32")
IDS = DRAW.integers(0, 50, (512,))
TABLE = DRAW.normal(size=(50, 16)).astype("float32")

STEPS = {
    "sums over many rows": (lambda x: tf.linalg.matmul(x, ROWS, transpose_a=True), ROWS),
    "convolution": (lambda x: tf.nn.conv2d(x, KERNEL, 1, "SAME"), IMAGES),
    "kernel of a convolution": (lambda k: tf.nn.conv2d(IMAGES, k, 1, "SAME"), KERNEL),
    "pooling": (lambda x: tf.nn.max_pool2d(x, 2, 2, "VALID"), IMAGES),
    "rows of a table": (lambda t: tf.gather(t, IDS), TABLE),
}


def gradient_by_jax(step, start):
    return jax.grad(lambda x: (jax.numpy.asarray(step(x)) ** 2).sum())(start)


@pytest.mark.parametrize("name", STEPS)
def test_a_tape_takes_gradients_through_a_compiled_function(name):
    step, start = STEPS[name]

    def gradient(fn):
        x = tf.Variable(start)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(fn(x) ** 2)
        return tf.convert_to_tensor(tape.gradient(loss, x)).numpy()

    expected = gradient_by_jax(step, start)
    np.testing.assert_allclose(gradient(tf.function(step)), expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("name", STEPS)
def test_jax_takes_gradients_through_a_compiled_function(name):
    step, start = STEPS[name]
    found = gradient_by_jax(rx.function(step), start)
    expected = gradient_by_jax(step, start)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)
