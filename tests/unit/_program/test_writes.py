"""What outputs and writes of a captured function are across replicas."""

import jax.numpy as jnp
import keras
import pytest

from replicax._core.errors import VariableNotReduced
from replicax._core.topology import AXIS
from replicax._program.aggregation import WriteRule, analyze_writes
from replicax._program.capture import capture


def captured(fn):
    return capture(lambda leaves: fn(*leaves), [jnp.float32(0.0)], axis_env=[(AXIS, 2)])


def test_what_replicas_made_differently_varies():
    variable = keras.Variable(1.0, name="count")

    def fn(x):
        variable.assign(2.0)
        return jnp.ones(2)

    program = captured(fn)
    assert analyze_writes(program, [True], [True, True]) == ((False,), [WriteRule.STORE])
    assert analyze_writes(program, [True], [False, True])[0] == (True,)
    with pytest.raises(VariableNotReduced, match="variable 'count'"):
        analyze_writes(program, [True], [True, False])
