"""`rx.function` reuses the memory of the variables that it writes, and of nothing else."""

from __future__ import annotations

import gc

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
from replicax import tf
from replicax._program import program


def counter():
    variable = keras.Variable(np.zeros(8, "float32"))

    @rx.function
    def step():
        variable.assign_add(jnp.ones(8))

    step()
    return variable, step


def test_memory_is_reused():
    variable, step = counter()
    reused = []
    for _ in range(3):
        pointer = variable.value.unsafe_buffer_pointer()
        step()
        reused.append(variable.value.unsafe_buffer_pointer() == pointer)
    assert any(reused)
    assert variable.value.tolist() == [4.0] * 8


@pytest.mark.parametrize("hold", [lambda v: v.value, lambda v: np.asarray(v.value)])
def test_what_the_user_holds_stays(hold):
    variable, step = counter()
    held = hold(variable)
    step()
    step()
    assert held.tolist() == [1.0] * 8
    assert variable.value.tolist() == [3.0] * 8


def test_what_the_user_gave_stays():
    variable, step = counter()
    given = jnp.full(8, 5.0)
    variable.assign(given)
    step()
    step()
    assert given.tolist() == [5.0] * 8
    assert variable.value.tolist() == [7.0] * 8


def test_two_variables_may_share_an_array():
    first, step = counter()
    second = keras.Variable(np.zeros(8, "float32"))
    second._value = first.value
    step()
    assert second.value.tolist() == [1.0] * 8


def test_values_that_are_gone_leave_nothing_behind():
    gc.collect()
    before = set(program._made)
    variable, step = counter()
    step()
    assert id(variable) in program._made
    del variable, step
    gc.collect()
    assert set(program._made) <= before


def test_run_and_function_take_turns(mirrored):
    with mirrored.scope():
        variable = keras.Variable(np.zeros(8, "float32"))

    def add():
        variable.assign_add(jnp.ones(8))

    step = rx.function(lambda: mirrored.run(add))
    for _ in range(3):
        step()
        mirrored.run(add)
    assert variable.value.tolist() == [6.0] * 8


def test_a_check_that_fails_leaves_the_variables():
    variable = keras.Variable(np.zeros(8, "float32"))

    @rx.function
    def step(x):
        tf.debugging.assert_greater(x, 0.0)
        variable.assign_add(x * jnp.ones(8))

    step(jnp.float32(1.0))
    with pytest.raises(rx.errors.UsageError, match=r"x is greater than y"):
        step(jnp.float32(-1.0))
    assert variable.value.tolist() == [1.0] * 8
