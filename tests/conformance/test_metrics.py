"""Keras metrics updated inside `run` report over all replicas."""

import keras
import numpy as np
import pytest

import replicax as rx

from helpers import batch_of, few_strategies, local


def made(strategy, metric, **options):
    with strategy.scope():
        return metric(**options)


def updated(strategy, metric, *batches):
    """Update the metric with global batches, each a tuple of its arguments."""
    for batch in strategy.experimental_distribute_dataset(list(batches)):
        strategy.run(lambda b: metric.update_state(*b), args=(batch,))
    return float(metric.result())


def test_weights_count(strategy):
    metric = made(strategy, keras.metrics.Mean)
    values, weights = np.array([1.0, 2.0, 6.0, 9.0]), np.array([1.0, 0.0, 2.0, 1.0])
    assert updated(strategy, metric, (values, weights)) == pytest.approx((1 + 12 + 9) / 4)


def test_the_result_inside_is_this_replicas(strategy):
    metric = made(strategy, keras.metrics.Mean)

    def replica_fn():
        metric.update_state(1.0 * rx.get_replica_context().replica_id_in_sync_group)
        return metric.result()

    inside = local(strategy, strategy.run(replica_fn))
    replicas = strategy.num_replicas_in_sync
    assert inside == [float(r) for r in range(replicas)]
    assert float(metric.result()) == (replicas - 1) / 2


def test_a_metric_made_outside_the_scope_is_reset_outside(strategy):
    metric = keras.metrics.Mean()
    assert updated(strategy, metric, (np.array([1.0, 3.0]),)) == 2.0
    metric.reset_state()
    assert float(metric.result()) == 0.0
    assert updated(strategy, metric, (np.array([5.0]),)) == 5.0


def test_a_metric_is_reset_inside(strategy):
    metric = made(strategy, keras.metrics.Mean)
    assert updated(strategy, metric, (np.array([1.0, 3.0]),)) == 2.0

    def replica_fn():
        metric.reset_state()
        metric.update_state(4.0)

    strategy.run(replica_fn)
    assert float(metric.result()) == 4.0
    assert float(metric.count.value) == strategy.num_replicas_in_sync


@few_strategies
def test_a_metric_of_many_batches_does_not_drift(strategy):
    metric = made(strategy, keras.metrics.Sum)
    replica_fn = metric.update_state
    value = batch_of(strategy, np.full(4, 0.25, "float32"))
    for _ in range(200):
        strategy.run(replica_fn, args=(value,))
    assert float(metric.result()) == 200.0
