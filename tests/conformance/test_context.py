"""Which strategy and which context is current, in and out of `scope` and `run`."""

import threading

import jax.numpy as jnp
import keras
import pytest

import replicax as rx

from helpers import local, two_strategies


def test_outside_every_scope_the_default_strategy_is_current():
    # Pair 82, first third.
    assert rx.get_strategy().num_replicas_in_sync == 1
    assert not rx.has_strategy()
    assert not rx.in_cross_replica_context()
    assert rx.get_replica_context().num_replicas_in_sync == 1
    assert int(rx.get_replica_context().replica_id_in_sync_group) == 0


def test_in_a_scope_its_strategy_is_current(strategy):
    # Pair 82, second third.
    is_default = strategy is rx.get_strategy()
    with strategy.scope() as entered:
        assert entered is strategy
        assert rx.get_strategy() is strategy
        assert rx.in_cross_replica_context()
        assert rx.get_replica_context() is None
        # The default strategy's scope does not count as one.
        assert rx.has_strategy() is not is_default


def test_in_run_a_replica_context_is_current(strategy):
    # Pair 82, last third.
    is_default = strategy is rx.get_strategy()
    seen = {}

    def replica_fn():
        context = rx.get_replica_context()
        seen["strategy"] = rx.get_strategy() is context.strategy is strategy
        seen["cross"] = rx.in_cross_replica_context()
        seen["has"] = rx.has_strategy()
        return context.num_replicas_in_sync

    assert strategy.run(replica_fn) == strategy.num_replicas_in_sync
    assert seen == {"strategy": True, "cross": False, "has": not is_default}


@two_strategies
def test_after_run_the_context_is_as_before(strategy):
    strategy.run(lambda: None)
    assert not rx.has_strategy()
    assert not rx.in_cross_replica_context()


def test_replica_ids_count_from_zero(strategy):
    ids = strategy.run(lambda: rx.get_replica_context().replica_id_in_sync_group)
    assert local(strategy, ids) == list(range(strategy.num_replicas_in_sync))


def test_the_context_names_the_devices(strategy):
    devices = strategy.run(lambda: rx.get_replica_context().devices)
    assert devices == strategy.extended.worker_devices
    assert len(devices) == strategy.num_replicas_in_sync


@two_strategies
def test_a_scope_may_be_entered_again(strategy):
    with strategy.scope(), strategy.scope():
        assert rx.get_strategy() is strategy
    assert not rx.has_strategy()


@two_strategies
def test_run_may_be_called_inside_the_scope(strategy):
    with strategy.scope():
        assert strategy.run(lambda: 3) == 3
        assert rx.get_strategy() is strategy


@pytest.mark.parametrize("call", ["scope", "run", "reduce", "gather"])
@two_strategies
def test_two_strategies_do_not_mix(strategy, call):
    other = rx.MirroredStrategy(["CPU:2", "CPU:3"])
    calls = {
        "scope": lambda: strategy.scope().__enter__(),
        "run": lambda: strategy.run(lambda: 1),
        "reduce": lambda: strategy.reduce("SUM", jnp.ones(2), axis=None),
        "gather": lambda: strategy.gather(jnp.ones(2), axis=0),
    }
    mixing = "Mixing different tf.distribute.Strategy objects"
    with other.scope(), pytest.raises(rx.errors.MixedStrategies, match=mixing):
        calls[call]()


@two_strategies
def test_a_scope_inside_run_stays_in_the_replica_context(strategy):
    def replica_fn():
        with strategy.scope():
            return rx.get_strategy() is strategy

    assert strategy.run(replica_fn) is True


@two_strategies
def test_values_from_function_inside_run_is_an_error(strategy):
    def replica_fn():
        return strategy.experimental_distribute_values_from_function(lambda context: 1.0)

    with pytest.raises(RuntimeError, match="_values_from_function` outside"):
        strategy.run(replica_fn)


def test_a_strategy_can_be_set_globally(strategy):
    rx.experimental_set_strategy(strategy)
    assert rx.get_strategy() is strategy
    assert rx.in_cross_replica_context()
    rx.experimental_set_strategy(None)
    assert not rx.has_strategy()
    assert not rx.in_cross_replica_context()


def test_variables_of_a_globally_set_strategy_live_on_its_devices(strategy):
    rx.experimental_set_strategy(strategy)
    variable = keras.Variable(1.0)
    rx.experimental_set_strategy(None)
    with strategy.scope():
        other = keras.Variable(1.0)
    assert variable.value.devices() == other.value.devices()


@two_strategies
def test_a_globally_set_strategy_can_be_replaced(strategy, mirrored):
    rx.experimental_set_strategy(mirrored)
    rx.experimental_set_strategy(strategy)
    assert rx.get_strategy() is strategy


@two_strategies
def test_run_works_in_a_second_thread(strategy):
    with strategy.scope():
        counter = keras.Variable(0.0, aggregation="sum")
    results = []

    def steps():
        for _ in range(3):
            strategy.run(lambda: counter.assign_add(1.0))
        results.append(float(counter.value))

    thread = threading.Thread(target=steps)
    thread.start()
    thread.join()
    assert results == [3.0 * strategy.num_replicas_in_sync]


def test_strategies_of_one_machine_have_no_cluster_resolver(strategy):
    resolver = strategy.cluster_resolver
    if isinstance(strategy, rx.MultiWorkerMirroredStrategy):
        assert not resolver.cluster_spec().jobs
    else:
        assert resolver is None
