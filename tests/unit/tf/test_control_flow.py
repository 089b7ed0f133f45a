"""`tf.range`, `tf.cond` and their kin, with TensorFlow's arguments."""

from __future__ import annotations

import logging

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
import replicax.tf as tf

from helpers import few_strategies


@pytest.mark.parametrize(
    ("arguments", "expected", "dtype"),
    [
        ((3,), [0, 1, 2], "int32"),
        ((1, 7, 3), [1, 4], "int32"),
        ((3, 0, -1), [3, 2, 1], "int32"),
        ((0.0, 1.0, 0.5), [0.0, 0.5], "float32"),
        ((np.int64(2),), [0, 1], "int64"),
        ((jnp.int32(2),), [0, 1], "int32"),
    ],
)
def test_a_range_is_an_array(arguments, expected, dtype):
    found = tf.range(*arguments)
    assert found.tolist() == expected
    assert found.dtype == dtype
    assert type(found.numpy()) is np.ndarray
    assert [type(x.numpy()) for x in found] == [np.ndarray] * len(expected)
    assert float(jnp.sum(found * 2)) == 2 * sum(expected)


def test_a_range_of_another_type_and_of_a_variable():
    assert tf.range(3, dtype="float32").dtype == "float32"
    assert tf.range(keras.Variable(2, dtype="int32")).tolist() == [0, 1]


@few_strategies
def test_the_loop_of_the_tpu_guide(strategy):
    with strategy.scope():
        seen = keras.Variable(0.0, aggregation="sum")
    traced = []

    @tf.function
    def train_multiple_steps(iterator, steps):
        def step_fn(rows):
            traced.append(1)
            seen.assign_add(rows.sum())

        for _ in tf.range(steps):
            strategy.run(step_fn, args=(next(iterator),))

    batches = rx.data.Dataset.range(64).batch(4, drop_remainder=True)
    batches = batches.map(lambda rows: rows.astype("float32"))
    iterator = iter(strategy.experimental_distribute_dataset(batches))
    for steps in (jnp.int32(3), np.int32(3), tf.range(4)[3]):
        train_multiple_steps(iterator, steps)
    assert float(seen.value) == sum(range(36))
    first = len(traced)
    train_multiple_steps(iterator, 7)
    assert len(traced) == first
    assert float(seen.value) == sum(range(64))


def test_optionals_of_the_input_tutorial(mirrored):
    @tf.function
    def train_fn(iterator):
        total = 0.0
        for _ in tf.range(100):
            optional = iterator.get_next_as_optional()
            if not optional.has_value():
                break
            parts = mirrored.run(lambda rows: rows.sum(), args=(optional.get_value(),))
            total += mirrored.reduce("SUM", parts, axis=None)
        return total

    dataset = rx.data.Dataset.range(10).batch(4)
    assert int(train_fn(iter(mirrored.experimental_distribute_dataset(dataset)))) == 45


def test_a_short_range_is_written_out_and_a_long_one_runs_as_python(caplog):
    def power(x, rounds):
        for _ in tf.range(rounds):
            x = x * 2
        return x

    short, long = tf.function(lambda x: power(x, 3)), tf.function(lambda x: power(x, 17))
    with caplog.at_level(logging.INFO, "replicax"):
        assert float(short(jnp.float32(1))) == 8.0
        assert not caplog.records
        assert float(long(jnp.float32(1))) == 2.0**17
    assert "loops over a `tf.range` of 17" in caplog.text
    with pytest.raises(rx.errors.UsageError, match="one program, and data comes"):
        rx.get_strategy().run(lambda x: power(x, 17), args=(jnp.float32(1),))


def test_a_range_of_traced_size_is_no_array():
    with pytest.raises(rx.errors.LeakedTracer, match="whose end is computed in the program"):
        tf.function(lambda n: jnp.asarray(tf.range(n)) * 2)(jnp.int32(3))


def test_cases():
    fn = tf.function(
        lambda x: tf.case([(x > 10, lambda: x * 0), (x > 5, lambda: x * 10)], default=lambda: -x)
    )
    assert [int(fn(jnp.int32(x))) for x in (11, 6, 1)] == [0, 60, -1]
    assert int(tf.case([(False, lambda: 1), (False, lambda: 2)])) == 2
    with pytest.raises(rx.errors.UsageError, match="no pairs of a predicate"):
        tf.case([])


def test_the_others_have_their_arguments():
    x = jnp.float32([1, 2, 3])
    assert int(tf.cond(True, lambda: 1, lambda: 2)) == 1
    assert int(tf.switch_case(1, [lambda: 1, lambda: 2])) == 2
    assert [int(v) for v in tf.while_loop(lambda i: i < 3, lambda i: [i + 1], [0])] == [3]
    assert int(tf.while_loop(lambda i: i < 9, lambda i: i + 1, (0,), maximum_iterations=4)[0]) == 4
    assert tf.map_fn(lambda x: x * 2, x, fn_output_signature="float32").tolist() == [2, 4, 6]
    assert tf.vectorized_map(lambda x: x * 2, x).tolist() == [2, 4, 6]
    assert tf.scan(lambda a, b: a + b, x).tolist() == [1, 3, 6]
    assert float(tf.foldl(lambda a, b: a - b, x)) == 1 - 2 - 3
    assert float(tf.foldr(lambda a, b: a - b, x)) == 3 - 2 - 1
    with tf.control_dependencies([tf.no_op()]):
        assert tf.group(x) is None
    assert tf.TensorArray("int32", 2).write(1, 3).stack().tolist() == [0, 3]
