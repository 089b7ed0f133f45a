"""`strategy.reduce` outside `run`, and `all_reduce` inside it."""

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx

from helpers import assert_trees_close, few_strategies, local, per_replica, two_replicas


def context():
    return rx.get_replica_context()


def replica_id():
    return context().replica_id_in_sync_group


def grown(strategy, axis_0=1):
    """On replica r, r + 1 rows that all hold r + 1: shapes differ."""
    sizes = range(1, strategy.num_replicas_in_sync + 1)
    return per_replica(strategy, *[np.full((n * axis_0,), n, "float32") for n in sizes])


def test_components_are_combined_element_by_element(strategy):
    values = strategy.run(lambda: jnp.array([[1.0, 2.0]]) * (1 + replica_id()))
    replicas = strategy.num_replicas_in_sync
    total = replicas * (replicas + 1) / 2  # 1 + 2 + … + replicas
    assert_trees_close(strategy.reduce("SUM", values, axis=None), np.array([[1.0, 2.0]]) * total)
    mean = strategy.reduce("MEAN", values, axis=None)
    assert_trees_close(mean, np.array([[1.0, 2.0]]) * total / replicas)


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


def test_an_equal_result_of_run_is_summed_once_per_replica(strategy):
    value = strategy.run(lambda: context().all_reduce("MEAN", jnp.float32(2.0)))
    assert float(strategy.reduce("SUM", value, axis=None)) == 2.0 * strategy.num_replicas_in_sync
    assert float(strategy.reduce("MEAN", value, axis=None)) == 2.0


@two_replicas
def test_all_reduce_keeps_the_structure(strategy):
    # Pair 70: [id, {"k": 2 id}] → 0.5, {"k": 1.0}.
    def replica_fn():
        rid = replica_id().astype("float32")
        return context().all_reduce("MEAN", [rid, {"k": 2 * rid}])

    result = strategy.run(replica_fn)
    assert float(result[0]) == 0.5
    assert float(result[1]["k"]) == 1.0


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


@pytest.mark.parametrize(
    "operation",
    [
        rx.ReductionToOneDevice(reduce_to_device="CPU:1", accumulation_fn=sum),
        rx.NcclAllReduce(num_packs=2),
        rx.HierarchicalCopyAllReduce(num_packs=0),
    ],
    ids=lambda op: type(op).__name__,
)
def test_a_strategy_reduces_by_the_operation_that_it_was_given(operation):
    # Pair 85: [1, 2] and [2, 4] → [3, 6] and [1.5, 3].
    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"], operation)
    value = per_replica(strategy, np.array([1.0, 2.0]), np.array([2.0, 4.0]))

    def replica_fn(v):
        return context().all_reduce("SUM", {"a": v, "b": [v.sum()]}), context().all_reduce(
            "MEAN", v
        )

    total, mean = strategy.run(replica_fn, args=(value,))
    assert_trees_close(np.asarray(total["a"]), np.array([3.0, 6.0]))
    assert_trees_close(np.asarray(total["b"][0]), np.float32(9.0))
    assert_trees_close(np.asarray(mean), np.array([1.5, 3.0]))


@few_strategies
def test_all_reduce_works_in_a_loop(strategy):
    def replica_fn():
        def body(_, total):
            return total + context().all_reduce("SUM", jnp.float32(1.0))

        return jax.lax.fori_loop(0, 3, body, jnp.float32(0.0))

    parts = local(strategy, strategy.run(replica_fn))
    assert parts == [3.0 * strategy.num_replicas_in_sync] * strategy.num_replicas_in_sync


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
