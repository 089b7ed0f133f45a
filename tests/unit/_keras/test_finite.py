"""`rx.assert_finite`: only floating-point numbers can be bad, and the first bad one is named."""

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx


@pytest.mark.parametrize(
    "value",
    [
        0.5,
        3,
        True,
        np.float32(1e38),
        np.arange(3),
        jnp.ones(2, "bfloat16"),
        jnp.zeros(0),
        1 + 2j,
        [],
        {"loss": 1.0, "parts": [jnp.ones(2), None]},
        np.iinfo("int64").max,
    ],
    ids=repr,
)
def test_a_finite_value_is_given_back(value):
    assert rx.assert_finite(value) is value


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("-inf"),
        np.array([1.0, np.inf]),
        jnp.asarray([jnp.nan], "bfloat16"),
        complex("nan"),
        {"loss": 1.0, "parts": [jnp.ones(2), jnp.inf]},
    ],
    ids=repr,
)
def test_a_value_that_is_not_finite(value):
    with pytest.raises(rx.errors.NonFinite, match="NaN or infinite") as caught:
        rx.assert_finite(value)
    assert "at this step" in str(caught.value)
    assert "this step's forward pass made it" in str(caught.value)
    assert isinstance(caught.value, ArithmeticError)


def test_the_first_bad_variable_is_named():
    good = keras.Variable(1.0, name="good")
    bad = keras.Variable([1.0, float("inf")], name="bad")
    worse = keras.Variable(float("nan"), name="worse")
    with pytest.raises(rx.errors.NonFinite, match="the first bad variable is 'bad'") as caught:
        rx.assert_finite(float("nan"), [good, bad, worse], where="batch 3")
    assert "at batch 3;" in str(caught.value)


def test_finite_variables_are_said_to_be():
    variables = [keras.Variable(1.0), keras.Variable(1, dtype="int32")]
    with pytest.raises(rx.errors.NonFinite, match="every variable is finite"):
        rx.assert_finite(float("nan"), variables)


def test_variables_are_looked_at_only_when_the_value_is_bad():
    def variables():
        raise KeyError("looked")

    assert rx.assert_finite(1.0, variables) == 1.0
    with pytest.raises(KeyError, match="looked"):
        rx.assert_finite(float("nan"), variables)


def test_the_loss_that_run_returned(strategy):
    number = strategy.run(lambda: rx.get_replica_context().replica_id_in_sync_group * 1.0)
    assert rx.assert_finite(number) is number
    last = strategy.num_replicas_in_sync - 1
    bad = strategy.run(
        lambda: jnp.where(rx.get_replica_context().replica_id_in_sync_group == last, jnp.nan, 1.0)
    )
    with pytest.raises(rx.errors.NonFinite, match="NaN or infinite value"):
        rx.assert_finite(bad)


def test_the_variables_of_a_strategy(mirrored):
    with mirrored.scope():
        v = keras.Variable(float("nan"), name="kernel")
    with pytest.raises(rx.errors.NonFinite, match="'kernel'"):
        rx.assert_finite(v.value, [v])


def test_inside_compiled_code_it_is_explained():
    with pytest.raises(rx.errors.LeakedTracer, match="needs the value of an array"):
        rx.function(rx.assert_finite)(jnp.float32(1.0))
