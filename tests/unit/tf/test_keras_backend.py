"""`tf.keras.backend`: what TensorFlow 2.21 gave for the same calls."""

import numpy as np
import pytest

import replicax.tf as tf

K = tf.keras.backend
X = tf.constant([[1.0, 5.0, 2.0], [3.0, -1.0, 0.5]])
Y = tf.constant([[0.5, 2.0, -1.0], [1.0, 1.0, 4.0]])
CUBE = tf.constant(np.arange(12.0, dtype="float32").reshape(2, 2, 3))
CALLS = {
    "mean": (lambda: K.mean(X, axis=1), [8 / 3, 2.5 / 3]),
    "int_shape": (lambda: K.int_shape(CUBE), [2, 2, 3]),
    "flatten": (lambda: K.flatten(X), [1, 5, 2, 3, -1, 0.5]),
    "argmax": (lambda: K.argmax(X), [1, 0]),
    "argmin": (lambda: K.argmin(X), [0, 1]),
    "concatenate": (lambda: K.concatenate([X[:, :1], Y[:, 1:]]), [[1, 2, -1], [3, 1, 4]]),
    "expand_dims": (lambda: K.expand_dims(X[0]), [[1], [5], [2]]),
    "clip": (lambda: K.clip(X, min_value=0, max_value=2), [[1, 2, 2], [2, 0, 0.5]]),
    "clip without a bound": (lambda: K.clip(X[1], None, 1), [1, -1, 0.5]),
    "cumsum": (lambda: K.cumsum(X), [[1, 5, 2], [4, 4, 2.5]]),
    "cumprod": (lambda: K.cumprod(X), [[1, 5, 2], [3, -5, 1]]),
    "pow": (lambda: K.pow(X[0], 2), [1, 25, 4]),
    "batch_flatten": (lambda: K.batch_flatten(CUBE)[1], [6, 7, 8, 9, 10, 11]),
    "batch_dot": (lambda: K.batch_dot(X, Y), [[8.5], [4]]),
    "batch_dot of axes": (
        lambda: K.batch_dot(CUBE, CUBE, axes=(2, 2)),
        [[[5, 14], [14, 50]], [[149, 212], [212, 302]]],
    ),
    "permute_dimensions": (
        lambda: K.permute_dimensions(CUBE, (0, 2, 1))[0],
        [[0, 3], [1, 4], [2, 5]],
    ),
    "repeat": (lambda: K.repeat(X[:, :2], 2), [[[1, 5], [1, 5]], [[3, -1], [3, -1]]]),
    "repeat_elements": (lambda: K.repeat_elements(X[:1, :2], 2, 1), [[1, 1, 5, 5]]),
    "reverse": (lambda: K.reverse(X, [0, 1]), [[0.5, -1, 3], [2, 5, 1]]),
    "tile": (lambda: K.tile(X[0], 2), [1, 5, 2, 1, 5, 2]),
    "gather": (lambda: K.gather(X, [1, 0])[:, 0], [3, 1]),
    "one_hot": (lambda: K.one_hot(tf.constant([0, 2]), 3), [[1, 0, 0], [0, 0, 1]]),
    "switch": (lambda: K.switch(tf.constant(False), lambda: X[0], lambda: Y[0]), [0.5, 2, -1]),
    "switch by rows": (lambda: K.switch(tf.constant([True, False]), X, Y), [[1, 5, 2], [1, 1, 4]]),
    "l2_normalize": (lambda: K.l2_normalize(tf.constant([3.0, 4.0])), [0.6, 0.8]),
    "relu": (lambda: K.relu(X, alpha=0.1, max_value=2.5), [[1, 2.5, 2], [2.5, -0.1, 0.5]]),
    "elu": (lambda: K.elu(X[1], 2.0), [3, 2 * (np.exp(-1) - 1), 0.5]),
    "hard_sigmoid": (lambda: K.hard_sigmoid(X), [[0.7, 1, 0.9], [1, 0.3, 0.6]]),
    "in_top_k": (lambda: K.in_top_k(X, tf.constant([1, 2]), 1), [True, False]),
    "bias_add": (lambda: K.bias_add(X, tf.constant([1.0, 2.0, 3.0]))[0], [2, 7, 5]),
    "temporal_padding": (lambda: K.temporal_padding(CUBE)[0, :, 0], [0, 0, 3, 0]),
    "spatial_2d_padding": (
        lambda: K.spatial_2d_padding(tf.ones((1, 1, 1, 1)))[0, 1, :, 0],
        [0, 1, 0],
    ),
    "conv2d": (lambda: K.conv2d(tf.ones((1, 3, 3, 2)), tf.ones((3, 3, 2, 1)))[0, 0, 0], [18]),
    "map_fn": (lambda: K.map_fn(lambda row: row * 2, X)[0], [2, 10, 4]),
    "foldl": (lambda: K.foldl(lambda a, b: a - b, X), [-2, 6, 1.5]),
    "foldr": (lambda: K.foldr(lambda a, b: a - b, X), [2, -6, -1.5]),
    "std": (lambda: K.std(X, axis=0), [1, 3, 0.75]),
    "shape": (lambda: K.shape(CUBE), [2, 2, 3]),
    "arange": (lambda: K.arange(1, 4), [1, 2, 3]),
    "constant": (lambda: K.constant([1, 2]), [1, 2]),
    "eye": (lambda: K.eval(K.eye(2)), [[1, 0], [0, 1]]),
    "binary_crossentropy": (
        lambda: K.binary_crossentropy(tf.constant([1.0, 0.0]), tf.constant([0.9, 0.2])),
        [0.10536, 0.223143],
    ),
    "dropout": (lambda: K.dropout(X, 0.0), [[1, 5, 2], [3, -1, 0.5]]),
    "random_bernoulli": (lambda: K.random_bernoulli((3,), 1.0), [1, 1, 1]),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_function_of_the_backend(name):
    call, expected = CALLS[name]
    np.testing.assert_allclose(call(), expected, rtol=1e-4)


def test_variables_are_made_and_updated():
    weights = K.variable([1, 2])
    assert K.dtype(weights) == K.floatx() == "float32"
    assert (K.ndim(weights), K.count_params(weights)) == (1, 2)
    K.update_add(K.update(weights, weights * 2), 1.0)
    K.update_sub(weights, 0.5)
    assert K.eval(weights).tolist() == [2.5, 4.5]
    K.moving_average_update(weights, tf.constant([0.0, 0.0]), 0.5)
    assert K.get_value(weights).tolist() == [1.25, 2.25]
    K.batch_set_value([(weights, [0.0, 1.0]), (K.zeros((2,)), [1.0, 1.0])])
    assert [v.tolist() for v in K.batch_get_value([weights, K.ones((1,))])] == [[0.0, 1.0], [1.0]]
    K.set_value(weights, [2.0, 6.0])
    assert K.get_value(weights).tolist() == [2.0, 6.0]


def test_zeros_of_compiled_code_are_no_variable():
    compiled = tf.function(lambda x: x + K.zeros((2,)))
    assert compiled(tf.ones(2)).numpy().tolist() == [1.0, 1.0]


def test_a_model_computes_with_them():
    inputs = tf.keras.Input((2, 3))
    outputs = K.argmax(K.batch_flatten(K.concatenate([inputs, inputs])))
    assert tf.keras.Model(inputs, outputs)(CUBE).numpy().tolist() == [8, 8]
