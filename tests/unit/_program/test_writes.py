"""What outputs and writes of a captured function are across replicas."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import keras
import pytest

from replicax._core.errors import VariableNotReduced
from replicax._core.reduce import SyncGroup, sum_leaves
from replicax._core.topology import AXIS
from replicax._program.aggregation import Settlement, analyse, settled
from replicax._program.capture import capture

GROUP = SyncGroup(2, sum_leaves)


def captured(fn):
    return capture(lambda leaves: fn(*leaves), [jnp.float32(0.0)], axis_env=[(AXIS, 2)])


@pytest.mark.parametrize(
    ("aggregation", "write", "shared", "expected"),
    [
        ("sum", lambda v, x: v.assign_add(x), False, Settlement.SUM_OF_CHANGES),
        ("sum", lambda v, x: v.assign(x), False, Settlement.SUM),
        ("mean", lambda v, x: v.assign(x), False, Settlement.MEAN),
        ("mean", lambda v, x: v.assign(x), True, Settlement.STORE),
        ("none", lambda v, x: v.assign_add(x), True, Settlement.STORE),
        ("only_first_replica", lambda v, x: v.assign(x), False, Settlement.FIRST),
    ],
)
def test_how_writes_are_settled(aggregation, write, shared, expected):
    variable = keras.Variable(1.0, aggregation=aggregation)
    _, how = analyse(captured(lambda x: write(variable, x)), [not shared])
    assert how == [expected]


def test_which_outputs_vary():
    variable = keras.Variable(1.0)
    program = captured(lambda x: (x, variable.value * 2, jnp.ones(2)))
    assert analyse(program, [True])[0] == (True, False, False)
    assert analyse(program, [False])[0] == (False, False, False)


def test_what_replicas_made_differently_varies():
    variable = keras.Variable(1.0, name="count")

    def fn(x):
        variable.assign(2.0)
        return jnp.ones(2)

    program = captured(fn)
    assert analyse(program, [True], [True, True]) == ((False,), [Settlement.STORE])
    assert analyse(program, [True], [False, True])[0] == (True,)
    with pytest.raises(VariableNotReduced, match="variable 'count'"):
        analyse(program, [True], [True, False])


def test_a_program_settles_what_it_writes():
    total, mean = keras.Variable(10.0, aggregation="sum"), keras.Variable(0.0, aggregation="mean")

    def fn(x):
        total.assign_add(x)
        mean.assign(x)
        return x * 2

    program = captured(fn)
    _, how = analyse(program, [True])
    state = [variable.value for variable in program.variables]
    run = jax.vmap(
        lambda x: settled(program, how, GROUP, state, [x], platform="cpu"), axis_name=AXIS
    )
    (output,), news = run(jnp.array([1.0, 5.0]))
    assert output.tolist() == [2.0, 10.0]
    is_total = [program.variables[position] is total for position in program.written]
    by_variable = dict(zip(is_total, news, strict=True))
    assert by_variable[True].tolist() == [16.0, 16.0]
    assert by_variable[False].tolist() == [3.0, 3.0]
