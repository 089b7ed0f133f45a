"""Parts of variables, their moving averages, and bits, with values that are known of TensorFlow."""

import jax.numpy as jnp
import numpy as np
import pytest

import replicax.tf as tf


def rows(values, indices):
    return tf.IndexedSlices(jnp.asarray(values), jnp.asarray(indices))


@pytest.mark.parametrize(
    ("how", "expected"),
    [("max", [[5, 5], [3, 4]]), ("min", [[1, 2], [3, 4]]), ("mul", [[5, 10], [3, 4]])],
)
def test_rows_are_changed(how, expected):
    v = tf.Variable([[1.0, 2.0], [3.0, 4.0]])
    getattr(v, f"scatter_{how}")(rows([[5.0, 5.0]], [0]))
    assert v.numpy().tolist() == expected


def test_rows_are_divided_and_parts_replaced():
    v = tf.Variable([[1.0, 2.0], [3.0, 4.0]])
    assert v.scatter_div(rows([[2.0, 2.0]], [1])).numpy().tolist() == [[1, 2], [1.5, 2]]
    v.scatter_nd_max([[0, 0], [1, 1]], [7.0, 0.0])
    assert v.numpy().tolist() == [[7, 2], [1.5, 2]]
    v.scatter_nd_min([[0, 0], [1, 1]], [0.0, 3.0])
    assert v.numpy().tolist() == [[0, 2], [1.5, 2]]
    v.batch_scatter_update(rows([[9.0], [8.0]], [[1], [0]]))
    assert v.numpy().tolist() == [[0, 9], [8, 2]]


def test_averages_follow_variables():
    v, ema = tf.Variable([0.0, 2.0]), tf.train.ExponentialMovingAverage(0.5)
    assert ema.average(v) is None
    ema.apply([v])
    v.assign([4.0, 2.0])
    ema.apply([v])
    assert ema.average(v).numpy().tolist() == [2, 2]
    assert not ema.average(v).trainable
    assert ema.variables_to_restore() == {ema.average_name(v): v}
    assert ema.average_name(v).endswith("/ExponentialMovingAverage")


def test_averages_follow_in_a_compiled_function_and_faster_at_first():
    v, steps = tf.Variable(0.0), tf.Variable(0)
    ema = tf.train.ExponentialMovingAverage(0.9, num_updates=steps)
    ema.apply([v])

    @tf.function
    def step():
        v.assign_add(1.0)
        ema.apply([v])
        steps.assign_add(1)

    expected, decays = 0.0, [0.1, 2 / 11, 3 / 12]
    for number, decay in enumerate(decays, 1):
        step()
        expected = decay * expected + (1 - decay) * number
        np.testing.assert_allclose(ema.average(v).numpy(), expected, rtol=1e-5)


def test_averages_in_run_are_those_of_one_device(mirrored):
    with mirrored.scope():
        v = tf.Variable(1.0, aggregation=tf.VariableAggregation.MEAN)
        ema = tf.train.ExponentialMovingAverage(0.75)
        ema.apply([v])

    def step():
        v.assign(5.0)
        ema.apply([v])

    mirrored.run(step)
    assert float(ema.average(v).numpy()) == 2.0


@pytest.mark.parametrize("make", [np.asarray, jnp.asarray])
def test_bits(make):
    b, x, y = tf.bitwise, make(np.array([0, 5, -14], "int32")), make(np.array([5, 3, 7], "int32"))
    assert b.bitwise_and(x, y).tolist() == [0, 1, 2]
    assert b.bitwise_or(x, y).tolist() == [5, 7, -9]
    assert b.bitwise_xor(x, y).tolist() == [5, 6, -11]
    assert b.left_shift(x, y).tolist() == [0, 40, -1792]
    assert b.right_shift(x, 1).tolist() == [0, 2, -7]
    assert b.invert(x).tolist() == [-1, -6, 13]
    one = make(np.array([1.0], "float32"))
    assert tf.bitcast(one, tf.int32).tolist() == [0x3F800000]
    assert tf.bitcast(one, tf.uint8).tolist() == [[0, 0, 128, 63]]
    assert tf.bitcast(tf.bitcast(one, tf.uint8), tf.float32).tolist() == [1.0]
