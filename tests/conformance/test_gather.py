"""`strategy.gather` outside `run`, and `all_gather` inside it: concatenation in replica order."""

import jax
import jax.numpy as jnp
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
    three_strategies,
    two_replicas,
)


def context():
    return rx.get_replica_context()


def gathered_both_ways(strategy, value, axis):
    """The result of `gather` and of `all_gather` on each replica; they must be equal."""
    inside = strategy.run(lambda v: context().all_gather(v, axis), args=(value,))
    return [np.asarray(strategy.gather(value, axis)), *local(strategy, inside)]


def all_equal(arrays, expected):
    for array in arrays:
        np.testing.assert_array_equal(array, expected)


def test_the_axis_may_be_negative(strategy):
    replicas = strategy.num_replicas_in_sync
    value = per_replica(strategy, *[np.full((2, 1), r) for r in range(replicas)])
    all_equal(gathered_both_ways(strategy, value, -1), np.tile(np.arange(replicas), (2, 1)))


def test_the_rows_of_any_batch_come_back_in_order(strategy):
    # 9 rows are uneven on 2, 4 and 8 replicas, and some of 8 have none.
    rows = np.arange(9.0, dtype="float32")
    all_equal(gathered_both_ways(strategy, batch_of(strategy, rows), 0), rows)


@two_replicas
def test_sizes_may_not_differ_along_another_axis(strategy):
    # Pair 74: (1, 1) and (1, 2) on axis 0.
    value = per_replica(strategy, np.ones((1, 1)), np.ones((1, 2)))
    with pytest.raises(rx.errors.UnevenBatch, match="Shape mismatch"):
        strategy.gather(value, axis=0)
    with pytest.raises(ValueError, match="Reduce a value over the batch first"):
        strategy.run(lambda v: context().all_gather(v, 0), args=(value,))


@three_strategies
def test_scalars_cannot_be_gathered_inside(strategy):
    with pytest.raises(rx.errors.UsageError, match="Cannot `all_gather` a scalar"):
        strategy.run(lambda: context().all_gather(jnp.float32(1.0), 0))


def test_an_equal_value_is_gathered_once_per_replica(strategy):
    value = strategy.run(lambda: context().all_reduce("MEAN", jnp.array([1.0, 2.0])))
    gathered = strategy.gather(value, axis=0)
    all_equal([np.asarray(gathered)], np.tile([1.0, 2.0], strategy.num_replicas_in_sync))


@few_strategies
def test_nests_are_gathered_leaf_by_leaf(strategy):
    def replica_fn():
        rows = jnp.full((2,), context().replica_id_in_sync_group)
        nest = {"a": rows, "b": [rows[None]]}
        return nest, {"a": context().all_gather(nest, 0)["a"]}

    value, inside = strategy.run(replica_fn)
    outside = strategy.gather(value, axis=0)
    rows = np.repeat(np.arange(strategy.num_replicas_in_sync), 2)
    all_equal([outside["a"], *local(strategy, inside["a"])], rows)
    all_equal([outside["b"][0]], rows.reshape(-1, 2))


@few_strategies
def test_the_gradient_of_all_gather_is_summed_and_sliced(strategy):
    # L_r = (r + 1) · Σ_i i · gathered_i. The gradient of replica s's element, summed over
    # the losses of all replicas: s · Σ (r + 1).
    def replica_fn(x):
        factor = 1.0 + context().replica_id_in_sync_group

        def loss(x):
            gathered = context().all_gather(x, 0)
            return factor * jnp.sum(gathered * jnp.arange(gathered.shape[0]))

        return jax.grad(loss)(x)

    replicas = strategy.num_replicas_in_sync
    value = per_replica(strategy, *np.ones((replicas, 1), "float32"))
    result = local(strategy, strategy.run(replica_fn, args=(value,)))
    total = replicas * (replicas + 1) / 2
    assert_trees_close(result, [np.array([s * total]) for s in range(replicas)])


@several_replicas
def test_gathered_rows_can_be_gathered_again(strategy):
    # The second gather's sizes depend on the first's.
    replicas = strategy.num_replicas_in_sync
    rows = np.arange(2.0 * replicas - 1, dtype="float32")

    def replica_fn(x):
        return context().all_gather(context().all_gather(x, 0), 0)

    result = local(strategy, strategy.run(replica_fn, args=(batch_of(strategy, rows),)))
    all_equal(result, np.tile(rows, replicas))


@few_strategies
def test_predictions_come_back_in_the_order_of_the_data(strategy):
    # As in an evaluation loop: uneven last batch, indices beside the outputs.
    data = {"index": np.arange(11), "x": np.arange(11.0, dtype="float32")}
    batches = [{k: v[i : i + 8] for k, v in data.items()} for i in (0, 8)]
    seen = []
    for batch in strategy.experimental_distribute_dataset(batches):
        outputs = strategy.run(lambda b: (b["index"], b["x"] * 2), args=(batch,))
        index, doubled = strategy.gather(outputs, axis=0)
        seen += zip(np.asarray(index).tolist(), np.asarray(doubled).tolist(), strict=True)
    assert seen == [(i, 2.0 * i) for i in range(11)]
