"""Variables that a compiled function makes of values that it computes, when it is first called."""

from __future__ import annotations

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
import replicax.tf as tf
from replicax._program.capture import MadeOfArguments

from helpers import few_strategies, local


class Scale:
    """Multiplies by a variable that it makes when it is first called."""

    def __init__(self, make):
        self.variable, self._make = None, make

    def __call__(self, x):
        if self.variable is None:
            self.variable = rx.Variable(self._make(x))
        self.variable.assign_add(jnp.ones(2))
        return self.variable * x


def threes(x):
    return jnp.ones(2) * 3.0


@few_strategies
@pytest.mark.parametrize("compiled", [False, True])
def test_of_constants(strategy, compiled):
    scale = Scale(threes)
    step = lambda x: strategy.run(scale, args=(x,))  # noqa: E731
    step = rx.function(step) if compiled else step
    for expected in (8.0, 10.0):
        for part in local(strategy, step(jnp.float32(2.0))):
            np.testing.assert_array_equal(part, [expected] * 2)
    assert scale.variable.numpy().tolist() == [5.0, 5.0]


@few_strategies
def test_of_what_a_variable_holds(strategy):
    with strategy.scope():
        other = rx.Variable([1.0, 2.0])
    scale = Scale(lambda x: other * 10.0)
    strategy.run(scale, args=(jnp.float32(1.0),))
    assert scale.variable.numpy().tolist() == [11.0, 21.0]


@few_strategies
def test_random_numbers_are_others_for_each_variable(strategy):
    with strategy.scope():
        seeds = keras.random.SeedGenerator(3)
    scales = [Scale(lambda x: keras.random.normal((2,), seed=seeds)) for _ in range(2)]
    for scale in scales:
        strategy.run(scale, args=(jnp.float32(1.0),))
    first, second = (scale.variable.numpy() for scale in scales)
    assert not np.allclose(first, second)
    for value in local(strategy, strategy.run(lambda: scales[0].variable + 0.0)):
        np.testing.assert_array_equal(value, first)


@few_strategies
@pytest.mark.parametrize("compiled", [False, True])
def test_of_an_argument_of_the_first_replica(strategy, compiled):
    scale = Scale(lambda x: x * jnp.ones(2))
    step = lambda x: strategy.run(scale, args=(x,))  # noqa: E731
    step = rx.function(step) if compiled else step
    numbers = strategy.experimental_distribute_values_from_function(
        lambda context: jnp.float32(2.0 + context.replica_id_in_sync_group)
    )
    for value in (3.0, 4.0):  # what TensorFlow 2.21 gives
        for replica, part in enumerate(local(strategy, step(numbers))):
            np.testing.assert_array_equal(part, [value * (2.0 + replica)] * 2)
    assert scale.variable.numpy().tolist() == [4.0, 4.0]


@few_strategies
def test_of_what_all_replicas_are_given(strategy):
    count = strategy.num_replicas_in_sync

    def summed(x):
        return tf.distribute.get_replica_context().all_reduce("sum", x) * jnp.ones(2)

    scale = Scale(summed)
    numbers = strategy.experimental_distribute_values_from_function(
        lambda context: jnp.float32(1.0 + context.replica_id_in_sync_group)
    )
    strategy.run(scale, args=(numbers,))
    assert scale.variable.numpy().tolist() == [count * (count + 1) / 2 + 1.0] * 2


def test_an_argument_of_replicas_with_different_sizes_is_refused():
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    rows = strategy.experimental_distribute_values_from_function(
        lambda context: jnp.ones(1 + context.replica_id_in_sync_group)
    )
    scale = Scale(lambda x: x * jnp.ones(2))
    with pytest.raises(MadeOfArguments):
        strategy.run(lambda x: scale(jnp.sum(x)), args=(rows,))


def test_an_argument_of_a_compiled_function():
    scale = Scale(lambda x: x * jnp.ones(2))
    assert rx.function(scale)(jnp.float32(2.0)).tolist() == [6.0, 6.0]  # as Python, once
    assert rx.function(scale)(jnp.float32(2.0)).tolist() == [8.0, 8.0]


def test_a_call_that_fails_leaves_no_value_behind():
    scale = Scale(threes)

    def fails(x):
        scale(x)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        rx.get_strategy().run(fails, args=(jnp.float32(1.0),))
    with pytest.raises(rx.errors.UsageError):
        _ = scale.variable.numpy()


def test_a_value_of_a_branch_is_refused():
    made = []

    def ones():
        made.append(rx.Variable(jnp.ones(2) * 1.0))
        return made[-1] + 1.0

    def of_a_branch(x):
        return tf.cond(x > 0, ones, lambda: jnp.ones(2))

    with pytest.raises(rx.errors.UsageError):
        rx.get_strategy().run(of_a_branch, args=(jnp.float32(1.0),))
    assert not made
