"""`strategy.reduce` outside `run`, and `all_reduce` inside it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx

from helpers import (
    assert_trees_close,
    batch_of,
    few_strategies,
    local,
    per_replica,
    several_replicas,
    two_replicas,
)

OPERATIONS = [
    rx.CrossDeviceOps(),
    rx.ReductionToOneDevice(),
    rx.ReductionToOneDevice(reduce_to_device="CPU:1", accumulation_fn=sum),
    rx.NcclAllReduce(),
    rx.NcclAllReduce(num_packs=0),
    rx.NcclAllReduce(num_packs=2),
    rx.HierarchicalCopyAllReduce(),
    rx.HierarchicalCopyAllReduce(num_packs=0),
    rx.HierarchicalCopyAllReduce(num_packs=3),
]


def context():
    return rx.get_replica_context()


def replica_id():
    return context().replica_id_in_sync_group


def grown(strategy, axis_0=1):
    """On replica r, r + 1 rows that all hold r + 1: shapes differ."""
    sizes = range(1, strategy.num_replicas_in_sync + 1)
    return per_replica(strategy, *[np.full((n * axis_0,), n, "float32") for n in sizes])


def test_the_sum_of_ones_is_the_number_of_replicas(strategy):
    # Pair 62.
    ones = strategy.run(lambda: jnp.ones(()))
    assert float(strategy.reduce("SUM", ones, axis=None)) == strategy.num_replicas_in_sync
    assert float(strategy.reduce("MEAN", ones, axis=None)) == 1.0


def test_an_axis_is_reduced_on_each_replica_first(strategy):
    # Pair 62: [1., 2.] on each replica.
    pairs = strategy.run(lambda: jnp.array([1.0, 2.0]))
    assert float(strategy.reduce("MEAN", pairs, axis=0)) == 1.5
    assert float(strategy.reduce("SUM", pairs, axis=0)) == 3.0 * strategy.num_replicas_in_sync


def test_components_are_combined_element_by_element(strategy):
    values = strategy.run(lambda: jnp.array([[1.0, 2.0]]) * (1 + replica_id()))
    replicas = strategy.num_replicas_in_sync
    total = replicas * (replicas + 1) / 2  # 1 + 2 + … + replicas
    assert_trees_close(strategy.reduce("SUM", values, axis=None), np.array([[1.0, 2.0]]) * total)
    mean = strategy.reduce("MEAN", values, axis=None)
    assert_trees_close(mean, np.array([[1.0, 2.0]]) * total / replicas)


@two_replicas
def test_the_mean_over_an_axis_counts_the_true_rows(strategy):
    # Pair 64: [1.] and [2., 2.] have the mean 5/3, not (1 + 2)/2.
    value = per_replica(strategy, np.array([1.0]), np.array([2.0, 2.0]))
    assert float(strategy.reduce("MEAN", value, axis=0)) == pytest.approx(5 / 3)
    assert float(strategy.reduce("SUM", value, axis=0)) == 5.0


def test_the_mean_over_an_axis_counts_the_true_rows_of_all_replicas(strategy):
    rows = np.concatenate([np.full(n, n) for n in range(1, strategy.num_replicas_in_sync + 1)])
    assert float(strategy.reduce("MEAN", grown(strategy), axis=0)) == pytest.approx(rows.mean())


@several_replicas
def test_uneven_components_cannot_be_combined_element_by_element(strategy):
    # Pair 64.
    with pytest.raises(ValueError, match="axis=0"):
        strategy.reduce("SUM", grown(strategy), axis=None)


@two_replicas
def test_an_empty_component_counts_nothing(strategy):
    # Pair 65: [1, 1] and [].
    value = per_replica(strategy, np.array([1.0, 1.0]), np.array([]))
    assert float(strategy.reduce("MEAN", value, axis=0)) == 1.0
    assert float(strategy.reduce("SUM", value, axis=0)) == 2.0


def test_the_mean_of_the_last_batch_is_its_true_mean(strategy):
    # 3 rows, also on 4 and 8 replicas, of which some have none: (5 + 6 + 8) / 3.
    batch = batch_of(strategy, np.array([5.0, 6.0, 8.0], "float32"))
    values = strategy.run(lambda x: x, args=(batch,))
    assert float(strategy.reduce("MEAN", values, axis=0)) == pytest.approx(19 / 3)


def test_axes_may_be_negative_and_several(strategy):
    value = strategy.run(lambda: jnp.arange(6.0).reshape(2, 3))
    replicas = strategy.num_replicas_in_sync
    last = strategy.reduce("SUM", value, axis=-1)
    assert_trees_close(last, np.array([3.0, 12.0]) * replicas)
    assert float(strategy.reduce("MEAN", value, axis=(0, 1))) == 2.5
    assert_trees_close(strategy.reduce("MEAN", value, axis=(0,)), np.array([1.5, 2.5, 3.5]))


@pytest.mark.parametrize("axis", [2, -3, (0, 2)])
def test_an_axis_must_exist(strategy, axis):
    value = strategy.run(lambda: jnp.ones((2, 3)))
    with pytest.raises(ValueError, match="`axis` must be"):
        strategy.reduce("MEAN", value, axis=axis)


@pytest.mark.parametrize("op", ["sum", "Sum", "SUM", rx.ReduceOp.SUM])
def test_operations_are_names_in_any_case(strategy, op):
    # Pair 67.
    value = strategy.run(lambda: jnp.ones(()))
    assert float(strategy.reduce(op, value, axis=None)) == strategy.num_replicas_in_sync


@pytest.mark.parametrize("where", ["reduce", "all_reduce"])
def test_there_are_no_other_operations(strategy, where):
    # Pair 67.
    with pytest.raises(ValueError, match="'max' is not a valid ReduceOp"):
        if where == "reduce":
            strategy.reduce("max", strategy.run(lambda: jnp.ones(1)), axis=0)
        else:
            strategy.run(lambda: context().all_reduce("max", jnp.ones(1)))


def test_nests_are_reduced_leaf_by_leaf(strategy):
    values = strategy.run(lambda: {"a": replica_id() * 1.0, "b": [jnp.ones(2), None]})
    replicas = strategy.num_replicas_in_sync
    result = strategy.reduce("SUM", values, axis=None)
    expected = {"a": replicas * (replicas - 1) / 2, "b": [np.full(2, replicas), None]}
    assert_trees_close(result, expected)


def test_the_mean_of_integers_is_a_fraction(strategy):
    values = strategy.run(lambda: replica_id())
    mean = (strategy.num_replicas_in_sync - 1) / 2
    if strategy.num_replicas_in_sync > 1:
        assert float(strategy.reduce("MEAN", values, axis=None)) == mean


def test_the_sum_of_integers_is_an_integer(strategy):
    # Pair 70: int32 1, 2 → 3.
    total = strategy.run(lambda: context().all_reduce("SUM", replica_id() + 1))
    replicas = strategy.num_replicas_in_sync
    parts = local(strategy, total)
    assert parts == [replicas * (replicas + 1) // 2] * replicas
    assert parts[0].dtype == np.int32


def test_a_plain_value_has_a_mean_and_no_sum(strategy):
    # Semantics 3.4: once or once per replica? Not known, so not summed.
    assert float(strategy.reduce("MEAN", np.float32(5.0), axis=None)) == 5.0
    if strategy.num_replicas_in_sync == 1:
        assert float(strategy.reduce("SUM", np.float32(5.0), axis=None)) == 5.0
        return
    with pytest.raises(ValueError, match="cannot be reduced with the given reduce op"):
        strategy.reduce("SUM", np.float32(5.0), axis=None)


def test_plain_zeros_have_a_sum(strategy):
    assert_trees_close(strategy.reduce("SUM", np.zeros(3), axis=None), np.zeros(3))


def test_over_an_axis_a_plain_value_counts_once_per_replica(strategy):
    # Semantics 3.4: [2, 3] on 2 replicas → 10.
    total = strategy.reduce("SUM", np.array([2.0, 3.0]), axis=0)
    assert float(total) == 5.0 * strategy.num_replicas_in_sync
    assert float(strategy.reduce("MEAN", np.array([2.0, 3.0]), axis=0)) == 2.5


def test_an_equal_result_of_run_is_summed_once_per_replica(strategy):
    value = strategy.run(lambda: context().all_reduce("MEAN", jnp.float32(2.0)))
    assert float(strategy.reduce("SUM", value, axis=None)) == 2.0 * strategy.num_replicas_in_sync
    assert float(strategy.reduce("MEAN", value, axis=None)) == 2.0


@two_replicas
def test_all_reduce_of_a_nest(strategy):
    # Pair 68.
    value = (
        per_replica(strategy, np.float32(1.0), np.float32(3.0)),
        per_replica(strategy, np.array([39.0, 2.0]), np.array([3.0, 41.0])),
    )
    for op, expected in (("SUM", (4.0, [42.0, 43.0])), ("MEAN", (2.0, [21.0, 21.5]))):
        result = strategy.run(lambda v, op=op: context().all_reduce(op, v), args=(value,))
        for parts, one in zip(result, expected, strict=True):
            assert_trees_close(local(strategy, parts), [np.array(one)] * 2)


@two_replicas
def test_all_reduce_keeps_the_structure(strategy):
    # Pair 70: [id, {"k": 2 id}] → 0.5, {"k": 1.0}.
    def replica_fn():
        rid = replica_id().astype("float32")
        return context().all_reduce("MEAN", [rid, {"k": 2 * rid}])

    result = strategy.run(replica_fn)
    assert float(result[0]) == 0.5
    assert float(result[1]["k"]) == 1.0


def test_all_reduce_of_one_captured_object_is_multiplied(strategy):
    # Section 0: R · t, where tf.distribute returns t.
    captured = jnp.float32(3.0)
    result = strategy.run(lambda: context().all_reduce("SUM", captured))
    assert float(result) == 3.0 * strategy.num_replicas_in_sync


def test_all_reduce_takes_python_numbers(strategy):
    result = strategy.run(lambda: context().all_reduce("SUM", 2.0))
    assert float(result) == 2.0 * strategy.num_replicas_in_sync


def test_all_reduce_of_nothing_is_nothing(strategy):
    assert strategy.run(lambda: context().all_reduce("SUM", {"a": [], "b": None})) == {
        "a": [],
        "b": None,
    }


def test_all_reduce_of_a_variable(strategy):
    # Pair 95: the sum of 2 per replica, plus the replica's number → [4, 5] on 2 replicas.
    with strategy.scope():
        variable = keras.Variable(2.0)
    result = strategy.run(lambda: context().all_reduce("SUM", variable) + replica_id())
    replicas = strategy.num_replicas_in_sync
    assert local(strategy, result) == [2.0 * replicas + r for r in range(replicas)]


@pytest.mark.parametrize("op", ["SUM", "MEAN"])
def test_the_gradient_of_all_reduce_is_all_reduced(strategy, op):
    # L_r = (r + 1) · all_reduce(w_r); every replica's w_r enters every L, so dΣL/dw_r is the
    # same reduction of the factors r + 1.
    def replica_fn(w):
        factor = 1.0 + replica_id()
        return jax.grad(lambda w: factor * context().all_reduce(op, w))(w)

    result = strategy.run(replica_fn, args=(np.float32(1.0),))
    replicas = strategy.num_replicas_in_sync
    total = replicas * (replicas + 1) / 2
    expected = total if op == "SUM" else total / replicas
    assert_trees_close(local(strategy, result), [np.float32(expected)] * replicas)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda op: f"{type(op).__name__}")
def test_every_cross_device_operation_gives_the_same_numbers(operation):
    # Pair 85: [1, 2] and [2, 4] → [3, 6] and [1.5, 3].
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"], operation)
    value = per_replica(strategy, np.array([1.0, 2.0]), np.array([2.0, 4.0]))

    def replica_fn(v):
        nest = {"a": v, "b": [v.sum(), v.astype("int32")]}
        return context().all_reduce("SUM", nest), context().all_reduce("MEAN", v)

    total, mean = strategy.run(replica_fn, args=(value,))
    assert_trees_close(np.asarray(total["a"]), np.array([3.0, 6.0]))
    assert_trees_close(np.asarray(total["b"][0]), np.float32(9.0))
    assert_trees_close(np.asarray(total["b"][1]), np.array([3, 6]))
    assert_trees_close(np.asarray(mean), np.array([1.5, 3.0]))
    assert_trees_close(np.asarray(operation.reduce("SUM", value)), np.array([3.0, 6.0]))
    assert_trees_close(np.asarray(operation.reduce("MEAN", value)), np.array([1.5, 3.0]))


@few_strategies
def test_all_reduce_works_in_a_loop(strategy):
    def replica_fn():
        def body(_, total):
            return total + context().all_reduce("SUM", jnp.float32(1.0))

        return jax.lax.fori_loop(0, 3, body, jnp.float32(0.0))

    parts = local(strategy, strategy.run(replica_fn))
    assert parts == [3.0 * strategy.num_replicas_in_sync] * strategy.num_replicas_in_sync


@several_replicas
def test_uneven_values_cannot_be_all_reduced(strategy):
    with pytest.raises(rx.errors.UnevenBatch, match="Reduce a value over the batch first"):
        strategy.run(lambda x: context().all_reduce("SUM", x), args=(grown(strategy),))


@several_replicas
def test_uneven_replicas_cannot_combine_inside_a_loop(strategy):
    def replica_fn(x):
        def body(_, total):
            return total + context().all_reduce("SUM", jnp.sum(x))

        return jax.lax.fori_loop(0, 3, body, jnp.float32(0.0))

    with pytest.raises(rx.errors.UnevenBatch, match="out of the loop"):
        strategy.run(replica_fn, args=(grown(strategy),))


def test_uneven_replicas_can_all_reduce_their_sums(strategy):
    # Mean over all rows by hand: Σ over replicas of sums and of counts.
    def replica_fn(x):
        total, rows = context().all_reduce("SUM", (jnp.sum(x), x.shape[0]))
        return total / rows

    result = strategy.run(replica_fn, args=(grown(strategy),))
    rows = np.concatenate([np.full(n, n) for n in range(1, strategy.num_replicas_in_sync + 1)])
    expected = [np.float32(rows.mean())] * strategy.num_replicas_in_sync
    assert_trees_close(local(strategy, result), expected)


@pytest.mark.parametrize(("axis", "fact"), [("0", "got '0'"), (0, "axis=None"), (0.5, "got 0.5")])
def test_an_axis_that_makes_no_sense_is_explained(axis, fact):
    strategy = rx.MirroredStrategy(2)
    with pytest.raises(rx.errors.UsageError, match=fact):
        strategy.reduce("SUM", strategy.run(lambda: 1.0), axis=axis)
