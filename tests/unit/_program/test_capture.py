"""Making a stateful function pure; variables that begin with what it computes."""

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
import replicax.tf as tf
from replicax._core.errors import UsageError
from replicax._program.capture import CaptureScope, InitialValueFromArguments, capture, evaluate
from replicax._program.explain import explain
from replicax._program.program import rebuilt

from helpers import few_strategies, local


def run(captured, *arrays):
    """Evaluate a captured function with the variables' values and store what it wrote."""
    values = [variable.value for variable in captured.variables]
    results = evaluate(captured.jaxpr, *values, *arrays)
    news = results[captured.num_outputs :]
    for position, new in zip(captured.written, news, strict=True):
        captured.variables[position].assign(new)
    return rebuilt(captured.tree, captured.outputs, results)


ONE = jnp.float32(1.0)


def test_reads_and_writes_are_noted():
    a, b, c = (keras.Variable(1.0) for _ in range(3))
    with CaptureScope() as scope:
        b.assign(a + 1.0)
        assert float(b.value) == 2.0
        c.assign_add(1.0)
    assert set(scope.reads) == {id(a), id(c)}
    assert set(scope.writes) == {id(b), id(c)}
    assert [(variable, float(new)) for variable, new in scope.updates()] == [(b, 2.0), (c, 2.0)]
    assert [float(v.value) for v in (a, b, c)] == [1.0, 1.0, 1.0]


def test_lent_values_are_read_and_are_no_writes():
    v = keras.Variable(1.0)
    with CaptureScope() as scope:
        scope.bind([(v, jnp.float32(7.0))])
        assert float(v.value) == 7.0
    assert (scope.reads, scope.writes) == ({}, {})


def test_a_scope_inside_another_sees_its_values_and_keeps_its_own():
    v = keras.Variable(1.0)
    with keras.StatelessScope([(v, jnp.float32(5.0))]) as outer:
        with CaptureScope() as scope:
            assert float(v.value) == 5.0
            v.assign(6.0)
        assert id(v) in scope.reads
        assert float(outer.get_current_value(v)) == 5.0


def test_known_variables_are_inputs_in_any_case():
    used, known = keras.Variable(1.0), keras.Variable(2.0)
    captured = capture(lambda leaves: used + leaves[0], [ONE], known=[known])
    assert captured.variables == (known, used)


def test_a_variable_made_anew_each_time_is_refused():
    with pytest.raises(ValueError, match="creates variables on a non-first call"):
        capture(lambda leaves: keras.layers.Dense(1)(leaves[0]), [jnp.ones((2, 3))])


def test_an_error_of_the_function_is_its_own():
    error = KeyError("mine")

    def fn(leaves):
        raise error

    with pytest.raises(KeyError) as caught:
        capture(fn, [ONE])
    assert caught.value is error
    # A cause that is the error itself sends those who follow causes around forever.
    assert caught.value.__cause__ is not error


def test_an_error_after_building_a_model_is_its_own():
    model = keras.Sequential([keras.layers.Dense(1)])

    def fn(leaves):
        model(leaves[0])
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        capture(fn, [jnp.ones((2, 3))])


def test_an_error_that_ends_once_the_model_is_built_passes():
    model = keras.Sequential([keras.layers.Dense(1)])

    def fn(leaves):
        weights = [*model.trainable_variables]
        model(leaves[0])
        return weights[0] * 1.0

    assert run(capture(fn, [jnp.ones((2, 3))]), jnp.ones((2, 3))).shape == (3, 1)


@pytest.mark.parametrize(
    "look",
    [float, int, bool, np.asarray, lambda x: 1 if x > 0 else 2, lambda x: [0, 1][x.astype(int)]],
    ids=["float", "int", "bool", "numpy", "if", "index"],
)
def test_looking_at_a_value_is_explained(look):
    with pytest.raises(rx.errors.LeakedTracer, match=r"value of an array|an index"):
        capture(lambda leaves: look(leaves[0]), [ONE])


def test_other_errors_are_not_reworded():
    error = ValueError("mine")
    assert explain(error) is error


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

    scale = Scale(lambda x: tf.distribute.get_replica_context().all_reduce("sum", x) * jnp.ones(2))
    numbers = strategy.experimental_distribute_values_from_function(
        lambda context: jnp.float32(1.0 + context.replica_id_in_sync_group)
    )
    strategy.run(scale, args=(numbers,))
    assert scale.variable.numpy().tolist() == [count * (count + 1) / 2 + 1.0] * 2


def test_an_argument_of_replicas_with_different_sizes_is_refused(mirrored):
    rows = mirrored.experimental_distribute_values_from_function(
        lambda context: jnp.ones(1 + context.replica_id_in_sync_group)
    )
    scale = Scale(lambda x: x * jnp.ones(2))
    with pytest.raises(InitialValueFromArguments):
        mirrored.run(lambda x: scale(jnp.sum(x)), args=(rows,))


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


@pytest.mark.parametrize(
    "apart",
    [
        lambda fn: keras.ops.cond(ONE > 2, fn, lambda: ONE),
        lambda fn: keras.ops.fori_loop(0, 0, lambda i, x: fn(), ONE),
        lambda fn: keras.ops.map(lambda x: fn(), ONE[None]),
        lambda fn: jax.jit(fn)(),
    ],
)
def test_a_write_in_what_jax_traces_apart_is_refused(apart):
    # It would be stored even if the branch is not taken.
    variable = keras.Variable(0.0, name="hits")

    def fn():
        variable.assign(5.0)
        return ONE

    with pytest.raises(UsageError, match="hits"):
        rx.function(lambda: apart(fn))()
    with pytest.raises(UsageError, match="hits"):
        rx.OneDeviceStrategy("CPU:0").run(lambda: apart(fn))
    assert float(variable) == 0.0


def test_writes_around_gradients_and_tapes_are_kept():
    variable, weight = keras.Variable(0.0), keras.Variable(3.0)

    def loss():
        variable.assign_add(2.0)
        return weight * weight

    @rx.function
    def both():
        rx.value_and_grad(loss, [weight])()
        with rx.GradientTape() as tape:
            found = loss()
        return tape.gradient(found, weight)

    assert float(both()) == 6.0
    assert float(variable) == 4.0
