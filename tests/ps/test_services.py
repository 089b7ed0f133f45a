"""Printing and random numbers of `replicax.tf` in closures."""

import numpy as np
import pytest

import replicax as rx
import replicax.tf as tf


@pytest.fixture(scope="module")
def strategy():
    strategy = rx.ParameterServerStrategy(engine="threads", num_workers=2, num_ps=1)
    yield strategy
    strategy.close()


@pytest.fixture
def coordinator(strategy):
    return rx.coordinator.ClusterCoordinator(strategy)


def test_closures_that_follow_each_other_draw_other_numbers(strategy, coordinator):
    draw = rx.function(lambda: strategy.run(lambda: tf.random.uniform([2])))
    other = rx.function(lambda: tf.random.uniform([2]))
    drawn = []
    for closure in (draw, draw, other):
        value = coordinator.schedule(closure)
        coordinator.join()
        drawn += np.asarray(value.fetch()).tolist()
    assert len(set(drawn)) == 6


def test_printing_stays_behind_and_says_so(coordinator):
    with pytest.raises(rx.errors.UsageError, match="rx.print"):
        coordinator.schedule(rx.function(lambda x: tf.print(x)), args=(np.ones(2),))
        coordinator.join()
