"""`ReduceOp`, the collectives of a sync group, and reductions outside `run`."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from replicax._core.errors import UnevenBatch, UsageError
from replicax._core.reduce import (
    GatherLog,
    ReduceOp,
    SyncGroup,
    gather_value,
    reduce_value,
    require_rank,
    sum_leaves,
)
from replicax._core.topology import AXIS
from replicax._core.values import Mirrored, PerReplica

ROWS = jnp.array([[1.0, 2.0], [3.0, 5.0]])
EVEN = PerReplica(ROWS)
UNEVEN = PerReplica(parts=(jnp.array([1.0]), jnp.array([2.0, 2.0])))
SAME = Mirrored(jnp.array([1.0, 3.0]), 2)


def on_replicas(fn, *columns):
    """Run `fn(group, *row)` once per row, as replicas."""
    group = SyncGroup(len(columns[0]), sum_leaves)
    return jax.vmap(lambda *row: fn(group, *row), axis_name=AXIS)(*columns)


@pytest.mark.parametrize("name", ["SUM", "sum", "Sum", ReduceOp.SUM])
def test_an_operation_is_a_name_in_any_case(name):
    assert ReduceOp.parse(name) is ReduceOp.SUM


@pytest.mark.parametrize("name", ["max", "", None, 3])
def test_there_are_two_operations(name):
    with pytest.raises(UsageError, match="use 'SUM' or 'MEAN'"):
        ReduceOp.parse(name)


@pytest.mark.parametrize(
    ("op", "value", "axis", "expected"),
    [
        ("SUM", EVEN, None, [4.0, 7.0]),
        ("MEAN", EVEN, None, [2.0, 3.5]),
        ("SUM", EVEN, 0, 11.0),
        ("MEAN", EVEN, -1, 2.75),
        ("SUM", UNEVEN, 0, 5.0),
        ("MEAN", UNEVEN, 0, 5 / 3),
        ("SUM", SAME, None, [2.0, 6.0]),
        ("MEAN", SAME, None, [1.0, 3.0]),
        ("SUM", SAME, 0, 8.0),
        ("MEAN", SAME, 0, 2.0),
        ("MEAN", np.array([2.0, 4.0]), None, [2.0, 4.0]),
        ("SUM", np.array([2.0, 3.0]), 0, 10.0),
        ("MEAN", np.array([2.0, 3.0]), 0, 2.5),
        ("SUM", np.zeros(2), None, [0.0, 0.0]),
        ("SUM", 0, None, 0),
    ],
)
def test_reductions(op, value, axis, expected):
    result = reduce_value(ReduceOp.parse(op), value, axis, replicas=2)
    np.testing.assert_allclose(result, expected, rtol=1e-6)


def test_even_components_that_come_apart_are_reduced_too():
    # As batches left in host memory do.
    value = PerReplica(parts=(np.array([1.0, 2.0]), np.array([3.0, 5.0])))
    assert reduce_value(ReduceOp.SUM, value, None, 2).tolist() == [4.0, 7.0]
    assert reduce_value(ReduceOp.MEAN, value, None, 2).tolist() == [2.0, 3.5]


def test_a_plain_value_of_one_replica_is_its_sum():
    assert reduce_value(ReduceOp.SUM, 5.0, None, replicas=1) == 5.0


def test_a_plain_value_is_not_summed():
    with pytest.raises(UsageError, match="non-DistributedValues value of type float"):
        reduce_value(ReduceOp.SUM, 5.0, None, replicas=2)


def test_uneven_components_are_not_combined():
    with pytest.raises(UnevenBatch, match="shapes .*axis=0"):
        reduce_value(ReduceOp.MEAN, UNEVEN, None, replicas=2)


def test_an_axis_must_exist_in_every_component():
    with pytest.raises(UsageError, match="`axis` must be"):
        reduce_value(ReduceOp.SUM, EVEN, 1, replicas=2)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(EVEN, [1, 2, 3, 5]), (UNEVEN, [1, 2, 2]), (SAME, [1, 3, 1, 3]), (np.array([7]), [7, 7])],
)
def test_gathering(value, expected):
    assert gather_value(value, 0, replicas=2).tolist() == expected


def test_components_that_do_not_fit_are_not_gathered():
    value = PerReplica(parts=(jnp.ones((1, 2)), jnp.ones((1, 3))))
    with pytest.raises(UnevenBatch, match="axis=0"):
        gather_value(value, 0, replicas=2)


def test_scalars_have_no_axis():
    with pytest.raises(UsageError, match="Cannot `gather` a scalar"):
        require_rank(0, "gather")
    require_rank(1, "gather")


def test_a_group_of_one_combines_nothing():
    group = SyncGroup(1, sum_leaves)
    assert group.all_reduce(ReduceOp.SUM, {"a": 2.0}) == {"a": 2.0}
    assert group.all_gather(jnp.ones(2), 0).shape == (2,)
    assert int(group.replica_id()) == 0
    assert group.merge("leaf") == "leaf"
    assert group.share == 1.0


def test_a_group_reduces_over_its_replicas():
    both = on_replicas(lambda g, x: (g.all_reduce(ReduceOp.SUM, x), g.replica_id()), ROWS)
    assert both[0].tolist() == [[4.0, 7.0]] * 2
    assert both[1].tolist() == [0, 1]


def test_a_group_asks_its_operation():
    # The operation sees the leaves of the nest as one list.
    seen = []

    def combine(op, leaves, group):
        seen.append((op, len(leaves), group.size))
        return [leaf * 10 for leaf in leaves]

    group = SyncGroup(3, combine)
    result = group.all_reduce(ReduceOp.MEAN, {"a": 1.0, "b": (2.0, 3.0)})
    assert seen == [(ReduceOp.MEAN, 3, 3)]
    assert [float(leaf) for leaf in jax.tree.leaves(result)] == [10.0, 20.0, 30.0]


def test_a_group_does_not_combine_nothing():
    group = SyncGroup(2, lambda *_: pytest.fail("there is nothing to combine"))
    assert group.all_reduce(ReduceOp.SUM, ()) == ()


def test_a_group_gathers_in_replica_order():
    result = on_replicas(lambda g, x: g.all_gather([x, x[None]], -1), ROWS)
    assert result[0].tolist() == [[1.0, 2.0, 3.0, 5.0]] * 2
    assert result[1].shape == (2, 1, 4)


def test_a_merged_leaf_has_every_replicas_value():
    def fn(group, x):
        merged = group.merge(x)
        return sum(merged.components), group.own(merged)

    total, own = on_replicas(fn, ROWS)
    assert total.tolist() == [[4.0, 7.0]] * 2
    assert own.tolist() == ROWS.tolist()


def test_python_values_are_not_merged():
    assert SyncGroup(2, sum_leaves).merge("text") == "text"


def test_uneven_components_are_not_handed_back():
    with pytest.raises(UnevenBatch, match="from `merge_call`"):
        SyncGroup(2, sum_leaves).own(UNEVEN)


def test_gathers_of_uneven_sizes_are_padded_and_cut():
    # One of two replicas, which has 1 row where the other has 2: the padding is cut off again.
    log = GatherLog([(1, 2)])
    group = SyncGroup(2, sum_leaves, gathers=log)
    padded = jax.vmap(lambda x: group.all_gather(x[:1], 0), axis_name=AXIS)(ROWS)
    assert padded.shape == (2, 3)
    assert padded[0].tolist() == [1.0, 3.0, 0.0]
    assert log.seen == [1]


def test_a_log_numbers_the_calls():
    log = GatherLog([(1, 2)])
    assert log.sizes(1, 2) == (1, 2)
    assert log.sizes(7, 2) == (7, 7)
    assert log.seen == [1, 7]
