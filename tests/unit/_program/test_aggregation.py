"""What a write from several replicas means: the table of `aggregation.py`, line by line."""

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

from replicax._core.errors import VariableNotReduced
from replicax._core.reduce import SyncGroup, sum_leaves
from replicax._core.topology import AXIS
from replicax._program.aggregation import WriteRule, aggregate, analyze_writes, choose_rule
from replicax._program.capture import capture

OLD = jnp.array([10.0, 10.0])
NEW = jnp.array([11.0, 14.0])


@pytest.mark.parametrize(
    ("aggregation", "varies", "from_old", "rule"),
    [
        ("none", False, False, WriteRule.STORE),
        ("none", False, True, WriteRule.STORE),
        ("mean", False, True, WriteRule.STORE),
        ("only_first_replica", False, False, WriteRule.STORE),
        ("mean", True, False, WriteRule.MEAN),
        ("mean", True, True, WriteRule.MEAN),
        ("only_first_replica", True, True, WriteRule.FIRST),
        ("sum", True, True, WriteRule.SUM_OF_CHANGES),
        ("sum", False, True, WriteRule.SUM_OF_CHANGES),
        ("sum", True, False, WriteRule.SUM),
        ("sum", False, False, WriteRule.SUM),
    ],
)
def test_the_table(aggregation, varies, from_old, rule):
    assert choose_rule(aggregation, varies=varies, from_old=from_old, path="v") is rule


def test_a_value_that_differs_needs_an_aggregation():
    with pytest.raises(VariableNotReduced, match="variable 'dense/kernel'"):
        choose_rule("none", varies=True, from_old=True, path="dense/kernel")


def aggregated(how, new, old=OLD, share=None, replicas=None):
    group = SyncGroup(replicas or len(new), sum_leaves, share=share)
    return jax.vmap(lambda n, o: aggregate([how], [n], [o], group)[0], axis_name=AXIS)(new, old)


def test_a_replica_without_rows_has_no_share_of_the_mean():
    new = jnp.array([np.nan, np.nan])
    assert aggregated(WriteRule.MEAN, new, share=0.0).tolist() == [0.0, 0.0]


def test_the_first_replicas_value_is_not_spoiled_by_the_others():
    assert aggregated(WriteRule.FIRST, jnp.array([3.0, np.nan])).tolist() == [3.0, 3.0]


@pytest.mark.parametrize("how", list(WriteRule))
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_the_type_stays(how, dtype):
    assert aggregated(how, NEW.astype(dtype), OLD.astype(dtype)).dtype == dtype


@pytest.mark.parametrize("how", [WriteRule.STORE, WriteRule.FIRST])
def test_flags_can_be_aggregated(how):
    result = aggregated(how, jnp.array([True, True]), jnp.array([False, False]))
    assert result.dtype == bool
    assert result.tolist() == [True, True]


def test_what_replicas_made_differently_varies():
    variable = keras.Variable(1.0, name="count")

    def fn(x):
        variable.assign(2.0)
        return jnp.ones(2)

    program = capture(lambda leaves: fn(*leaves), [jnp.float32(0.0)], axis_env=[(AXIS, 2)])
    assert analyze_writes(program, [True], [True, True]) == ((False,), [WriteRule.STORE])
    assert analyze_writes(program, [True], [False, True])[0] == (True,)
    with pytest.raises(VariableNotReduced, match="variable 'count'"):
        analyze_writes(program, [True], [True, False])
