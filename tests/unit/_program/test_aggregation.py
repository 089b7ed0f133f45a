"""What a write from several replicas means: the table of `aggregation.py`, line by line."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from replicax._core.errors import VariableNotReduced
from replicax._core.reduce import SyncGroup, sum_leaves
from replicax._core.topology import AXIS
from replicax._program.aggregation import Settlement, decide, settle

OLD = jnp.array([10.0, 10.0])
NEW = jnp.array([11.0, 14.0])


@pytest.mark.parametrize(
    ("aggregation", "varies", "from_old", "settlement"),
    [
        ("none", False, False, Settlement.STORE),
        ("none", False, True, Settlement.STORE),
        ("mean", False, True, Settlement.STORE),
        ("only_first_replica", False, False, Settlement.STORE),
        ("mean", True, False, Settlement.MEAN),
        ("mean", True, True, Settlement.MEAN),
        ("only_first_replica", True, True, Settlement.FIRST),
        ("sum", True, True, Settlement.SUM_OF_CHANGES),
        ("sum", False, True, Settlement.SUM_OF_CHANGES),
        ("sum", True, False, Settlement.SUM),
        ("sum", False, False, Settlement.SUM),
    ],
)
def test_the_table(aggregation, varies, from_old, settlement):
    assert decide(aggregation, varies=varies, from_old=from_old, path="v") is settlement


def test_a_value_that_differs_needs_an_aggregation():
    with pytest.raises(VariableNotReduced, match="variable 'dense/kernel'"):
        decide("none", varies=True, from_old=True, path="dense/kernel")


def settled(how, new, old=OLD, share=None, replicas=None):
    group = SyncGroup(replicas or len(new), sum_leaves, share=share)
    return jax.vmap(lambda n, o: settle([how], [n], [o], group)[0], axis_name=AXIS)(new, old)


def test_a_replica_without_rows_has_no_share_of_the_mean():
    new = jnp.array([np.nan, np.nan])
    assert settled(Settlement.MEAN, new, share=0.0).tolist() == [0.0, 0.0]


def test_the_first_replicas_value_is_not_spoiled_by_the_others():
    new = jnp.array([3.0, np.nan])
    assert settled(Settlement.FIRST, new).tolist() == [3.0, 3.0]


@pytest.mark.parametrize("how", list(Settlement))
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_the_type_stays(how, dtype):
    assert settled(how, NEW.astype(dtype), OLD.astype(dtype)).dtype == dtype


@pytest.mark.parametrize("how", [Settlement.STORE, Settlement.FIRST])
def test_flags_can_be_settled(how):
    result = settled(how, jnp.array([True, True]), jnp.array([False, False]))
    assert result.dtype == bool
    assert result.tolist() == [True, True]
