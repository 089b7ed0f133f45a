"""`ReduceOp`, the collectives of a sync group, and reductions outside `run`."""

import jax.numpy as jnp
import numpy as np
import pytest

from replicax._core.errors import UnevenBatch, UsageError
from replicax._core.reduce import ReduceOp, SyncGroup, reduce_value, sum_leaves
from replicax._core.values import PerReplica

UNEVEN = PerReplica(parts=(jnp.array([1.0]), jnp.array([2.0, 2.0])))


@pytest.mark.parametrize("name", ["SUM", "sum", "Sum", ReduceOp.SUM])
def test_an_operation_is_a_name_in_any_case(name):
    assert ReduceOp.parse(name) is ReduceOp.SUM


@pytest.mark.parametrize("name", ["max", "", None, 3])
def test_there_are_two_operations(name):
    with pytest.raises(UsageError, match="use 'SUM' or 'MEAN'"):
        ReduceOp.parse(name)


def test_even_components_that_come_apart_are_reduced_too():
    # As batches left in host memory do.
    value = PerReplica(parts=(np.array([1.0, 2.0]), np.array([3.0, 5.0])))
    assert reduce_value(value, ReduceOp.SUM, None, 2).tolist() == [4.0, 7.0]
    assert reduce_value(value, ReduceOp.MEAN, None, 2).tolist() == [2.0, 3.5]


def test_uneven_components_are_not_handed_back():
    with pytest.raises(UnevenBatch, match="from `merge_call`"):
        SyncGroup(2, sum_leaves).own(UNEVEN)
