"""`tf.debugging`: checks of values, shapes and types."""

import contextlib
import threading

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
import replicax.tf as tf

from helpers import run_python

d = tf.debugging
ONE, TWO = np.array([1.0, 1.0]), jnp.array([1.0, 2.0])


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (lambda: d.assert_equal(ONE, 1.0), lambda: d.assert_equal(ONE, TWO)),
        (lambda: d.assert_none_equal(ONE, 2), lambda: d.assert_none_equal(ONE, TWO)),
        (lambda: d.assert_less(ONE, 2), lambda: d.assert_less(ONE, TWO)),
        (lambda: d.assert_less_equal(ONE, TWO), lambda: d.assert_less_equal(TWO, ONE)),
        (lambda: d.assert_greater(TWO, 0), lambda: d.assert_greater(TWO, ONE)),
        (lambda: d.assert_greater_equal(TWO, ONE), lambda: d.assert_greater_equal(ONE, TWO)),
        (lambda: d.assert_near(1.0, 1.000001), lambda: d.assert_near(1.0, 1.001)),
        (lambda: d.assert_near(1.0, 1.05, atol=0.1), lambda: d.assert_near(1.0, 1.2, atol=0.1)),
        (lambda: d.assert_positive(ONE), lambda: d.assert_positive(0)),
        (lambda: d.assert_non_negative([0, 1]), lambda: d.assert_non_negative(-1)),
        (lambda: d.assert_negative(-ONE), lambda: d.assert_negative(0)),
        (lambda: d.assert_non_positive(0), lambda: d.assert_non_positive(ONE)),
        (lambda: d.check_numerics(ONE, "x"), lambda: d.check_numerics([np.nan], "x")),
        (lambda: d.assert_all_finite(ONE, "x"), lambda: d.assert_all_finite([np.inf], "x")),
        (lambda: d.Assert(TWO[0] == 1, [TWO]), lambda: d.Assert(False, [TWO])),
    ],
)
def test_values(right, wrong):
    right()
    with pytest.raises(tf.errors.InvalidArgumentError):
        wrong()


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (lambda: d.assert_rank(ONE, 1), lambda: d.assert_rank(ONE, 2)),
        (lambda: d.assert_rank_at_least(ONE, 1), lambda: d.assert_rank_at_least(ONE, 2)),
        (lambda: d.assert_rank_in(ONE, (1, 2)), lambda: d.assert_rank_in(ONE, (0, 2))),
        (lambda: d.assert_scalar(1), lambda: d.assert_scalar(ONE)),
        (lambda: d.assert_type(TWO, "float32"), lambda: d.assert_type(TWO, "int32")),
        (lambda: d.assert_integer(1), lambda: d.assert_integer(ONE)),
        (lambda: d.assert_same_float_dtype([ONE]), lambda: d.assert_same_float_dtype([ONE, TWO])),
        (
            lambda: d.assert_shapes([(np.ones((2, 3)), ("N", 3)), (ONE, "N")]),
            lambda: d.assert_shapes([(np.ones((2, 3)), ("N", "N"))]),
        ),
        (
            lambda: d.assert_shapes([(np.ones((2, 3, 4)), (..., "A", None))]),
            lambda: d.assert_shapes([(ONE, (2, 1))]),
        ),
    ],
)
def test_shapes_and_types(right, wrong):
    right()
    with pytest.raises(ValueError, match="Check failed"):
        wrong()


def test_compiled_code_checks_each_time(mirrored):

    @rx.function
    def half(x):
        tf.debugging.assert_less(x, 3.0, message="too large")
        return mirrored.run(lambda: tf.debugging.check_numerics(x / 2, "half"))

    assert {float(x) for x in mirrored.experimental_local_results(half(2.0))} == {1.0}
    for _ in range(2):
        with pytest.raises(tf.errors.InvalidArgumentError, match="too large"):
            half(4.0)


def test_text_of_an_assertion_is_its_message():
    @tf.function
    def checked(x):
        tf.debugging.Assert(x < 3.0, ["too large:", x])
        return x

    assert checked(tf.constant(2.0)) == 2.0
    with pytest.raises(tf.errors.InvalidArgumentError, match="7.*too large"):
        checked(tf.constant(7.0))


def test_a_check_in_code_that_jax_runs_fails_its_program():
    # In a process of its own: JAX repeats the error when it ends.
    said = run_python("""
        import jax, jax.numpy as jnp
        import replicax.tf as tf

        check = jax.jit(lambda x: tf.debugging.assert_less(x, 3.0) or x)
        try:
            print(check(jnp.float32(4)))
            jax.effects_barrier()
        except tf.errors.InternalError:
            print("failed")
    """)
    assert said.splitlines() == ["failed"]


def test_settings():
    d.enable_check_numerics()
    try:
        with pytest.raises(FloatingPointError):
            jax.jit(lambda x: x / 0)(jnp.float32(0))
    finally:
        d.disable_check_numerics()
    d.set_log_device_placement(True)
    assert d.get_log_device_placement()
    d.disable_traceback_filtering()
    assert not d.is_traceback_filtering_enabled()
    d.enable_traceback_filtering()
    assert d.is_traceback_filtering_enabled()
    assert d.is_numeric_tensor(ONE) and not d.is_numeric_tensor("a")


@pytest.mark.parametrize("compiled", [False, True])
def test_a_check_in_run_raises_at_its_step_and_the_variables_stay(compiled, mirrored):
    with mirrored.scope():
        total = tf.Variable(1.0, aggregation=tf.VariableAggregation.SUM)

    def replica_step(x):
        tf.debugging.assert_positive(x)
        total.assign_add(tf.reduce_sum(x))
        return x * 2

    step = lambda x: mirrored.run(replica_step, args=(x,))  # noqa: E731
    step = tf.function(step) if compiled else step
    step(tf.constant([1.0]))
    with pytest.raises(tf.errors.InvalidArgumentError):
        step(tf.constant([-1.0]))
    assert total.numpy() == 3.0
    doubled = step(tf.constant([2.0]))
    assert [float(x[0]) for x in mirrored.experimental_local_results(doubled)] == [4.0, 4.0]
    assert total.numpy() == 7.0


class Checked(keras.layers.Layer):
    def call(self, x):
        tf.debugging.assert_less(x, 10.0)
        return x


class Asserted(keras.layers.Layer):
    def call(self, x):
        assert tf.reduce_max(x) < 10.0, x
        return x


def on_two_devices():
    return rx.MirroredStrategy(["cpu:0", "cpu:1"]).scope()


@pytest.mark.parametrize(
    ("scope", "layer", "steps"),
    [
        (on_two_devices, Checked, 1),
        (contextlib.nullcontext, Checked, 1),
        (contextlib.nullcontext, Checked, 2),
        (contextlib.nullcontext, Asserted, 1),
    ],
    ids=["mirrored", "no strategy", "two steps at once", "assert"],
)
def test_a_check_in_fit_ends_it_and_the_model_keeps_its_last_weights(scope, layer, steps):
    with scope():
        dense = keras.layers.Dense(1, kernel_initializer="zeros")
        model = keras.Sequential([keras.Input((2,)), layer(), dense])
        model.compile("sgd", "mse", steps_per_execution=steps)
    x, y = np.ones((12, 2), "float32"), np.ones((12, 1), "float32")
    x[7, 1] = 11.0
    with pytest.raises(tf.errors.InvalidArgumentError):
        model.fit(x, y, batch_size=4, shuffle=False, verbose=0)
    for weight in model.get_weights():  # of its step: 0.01 · 2 · (1 - 0)
        np.testing.assert_allclose(weight, 0.02, rtol=1e-6)
    for call in (model.train_on_batch, model.test_on_batch, model.evaluate):
        with pytest.raises(tf.errors.InvalidArgumentError):
            call(x, y)
    with pytest.raises(tf.errors.InvalidArgumentError):
        model.predict(x, verbose=0)
    for weight in model.get_weights():
        np.testing.assert_allclose(weight, 0.02, rtol=1e-6)
    model.fit(x[8:], y[8:], batch_size=4, verbose=0)
    assert model.optimizer.iterations == 2


def test_the_number_that_a_check_does_not_hold_for_is_named():
    checked = tf.function(lambda x: tf.debugging.assert_less(x, 5.0))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"17\."):
        checked(tf.constant([1.0, 2.0, 3.0, 4.0, 17.0]))


def test_what_a_check_raises_is_of_its_own_program():
    def fails(x):
        tf.debugging.assert_less(x, 0.0)
        return x

    def holds(x):
        tf.debugging.assert_less(x, 10.0)
        return x

    found = {fails: [], holds: []}

    def repeat(fn):
        compiled = tf.function(fn)
        for _ in range(20):
            try:
                compiled(tf.constant(1.0))
                found[fn].append(True)
            except tf.errors.InvalidArgumentError:
                found[fn].append(False)

    threads = [threading.Thread(target=repeat, args=(fn,)) for fn in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == {fails: [False] * 20, holds: [True] * 20}
