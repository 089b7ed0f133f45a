"""What is known while code is compiled stays known: shapes, numbers, and what `build` makes."""

import keras
import numpy as np
import pytest

import replicax as rx
import replicax.tf as tf

from helpers import few_strategies

ROWS = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)


def decided_by_a_constant(x):
    if tf.reduce_any(tf.constant([True])):
        return x + 1
    return x


def decided_by_a_size(x):
    return x * 2 if tf.shape(x)[0] > 1 else x


@pytest.mark.parametrize(
    ("compute", "expected"),
    [
        (lambda x: tf.reshape(x, [tf.math.maximum(2, 1), -1]), ROWS),
        (lambda x: tf.split(x, tf.repeat(1, 2), axis=1)[1], ROWS[:, 1:]),
        (lambda x: x * int(tf.math.ceil(4 / 3)), ROWS * 2),
        (lambda x: tf.reshape(x, [-1, tf.constant(5) // 2]), ROWS),
        (lambda x: tf.reshape(x, tf.constant([2, -1])), ROWS),
        (lambda x: tf.reshape(x, [tf.reduce_prod(tf.shape(x))]), ROWS.ravel()),
        (lambda x: tf.zeros([tf.shape(x)[0], 3]), np.zeros((2, 3))),
        (lambda x: x[:, : tf.shape(x)[1] - 1], ROWS[:, :1]),
        (lambda x: x + np.ones(int(tf.size(x))).sum(), ROWS + 4),
        (lambda x: sum(x[row] for row in range(tf.shape(x)[0])), ROWS.sum(0)),
        (decided_by_a_constant, ROWS + 1),
        (decided_by_a_size, ROWS * 2),
    ],
)
def test_constants_stay_constants(compute, expected):
    np.testing.assert_array_equal(tf.function(compute)(ROWS), expected)


@few_strategies
def test_they_do_so_under_run(strategy):
    result = strategy.run(lambda: tf.zeros([tf.constant(5) // 2, 3]))
    assert strategy.experimental_local_results(result)[0].shape == (2, 3)


def test_a_long_constant_is_left_to_the_program():
    text = tf.function(lambda x: x + tf.zeros([300, 300])).get_concrete_function(
        tf.TensorSpec([300, 300])
    )
    assert np.asarray(text(np.ones((300, 300), np.float32))).sum() == 90_000
    seen = []
    tf.function(lambda: seen.append(tf.zeros([300, 300])))()
    with pytest.raises(rx.errors.UsageError):
        seen[0].numpy()


def test_the_gradient_of_a_constant_that_is_watched():
    @tf.function
    def slope():
        x = tf.constant(3.0)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x * x * x
        return tape.gradient(y, x)

    assert float(slope()) == 27.0


class Projection(keras.layers.Layer):
    """Makes its variables of values, as programs for TensorFlow do."""

    def build(self, input_shape):
        self.start = tf.random.normal([input_shape[-1], 3], seed=1)
        self.kernel = tf.Variable(self.start, name="kernel")
        self.bias = tf.Variable(initial_value=tf.zeros([3]), trainable=True)
        self.rounds = int(tf.math.ceil(4 / 3))
        if tf.reduce_any(tf.range(3) > 1):
            self.mask = tf.constant(np.eye(3, dtype=np.float32)) * tf.cast(tf.range(3), tf.float32)

    def call(self, x):
        return tf.matmul(x, self.kernel) @ self.mask * self.rounds + self.bias


@few_strategies
def test_build_makes_variables_of_values(strategy):
    with strategy.scope():
        model = keras.Sequential([Projection(), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.fit(np.ones((8, 2), np.float32), np.ones((8, 1)), verbose=0)
    layer = model.layers[0]
    assert [tuple(weight.shape) for weight in model.weights] == [(2, 3), (3,), (3, 1), (1,)]
    assert isinstance(layer.start.numpy(), np.ndarray)


@few_strategies
def test_a_layer_is_built_in_the_first_call_of_run(strategy):
    with strategy.scope():
        layer = Projection()
    found = strategy.run(tf.function(lambda x: layer(x)), args=(tf.constant(ROWS),))
    expected = ROWS @ np.asarray(layer.start) @ np.diag([0.0, 1.0, 2.0]) * 2
    for result in strategy.experimental_local_results(found):
        np.testing.assert_allclose(result, expected, rtol=1e-5)


def test_a_known_tensor_keeps_its_value_when_another_name_is_counted_up():
    @tf.function
    def count(x):
        first = number = tf.constant([1, 2])
        number += 1
        number *= 2
        return x, first, number

    _, first, number = count(tf.ones(1))
    assert (first.tolist(), number.tolist()) == ([1, 2], [4, 6])


def test_an_element_of_a_pipeline_is_not_changed_in_place():
    for row in tf.data.Dataset.from_tensor_slices(np.array([[1.0, 2.0]])):
        kept = row
        row -= 1.0
        row /= 2.0
        assert (kept.numpy().tolist(), row.numpy().tolist()) == ([1.0, 2.0], [0.0, 0.5])
