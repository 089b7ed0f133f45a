"""The default strategy, and the five questions of "who am I"."""

import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax._core.errors import NotInCrossReplicaContext


def test_setting_a_strategy_in_a_scope_is_explained(mirrored):
    expected = "must not be called inside a tf.distribute.Strategy scope"
    with mirrored.scope(), pytest.raises(NotInCrossReplicaContext, match=expected):
        rx.experimental_set_strategy(None)


def test_setting_a_strategy_inside_run_is_refused(mirrored):
    with pytest.raises(RuntimeError, match="must not be called inside a tf.distribute.Strategy"):
        mirrored.run(lambda: rx.experimental_set_strategy(None))


def test_a_scope_of_the_global_strategy_ends_where_it_began(mirrored):
    rx.experimental_set_strategy(mirrored)
    with mirrored.scope():
        assert rx.get_strategy() is mirrored
    assert rx.get_strategy() is mirrored
    rx.experimental_set_strategy(None)


def test_a_global_strategy_keeps_others_out(mirrored):
    rx.experimental_set_strategy(mirrored)
    with pytest.raises(rx.errors.MixedStrategies, match="whose scope is open"):
        rx.OneDeviceStrategy("CPU:0").scope().__enter__()


def test_the_context_outside_every_scope_works():
    context = rx.get_replica_context()
    assert context.strategy is rx.get_strategy()
    assert float(context.all_reduce("SUM", 3.0)) == 3.0
    assert context.all_gather(np.array([1.0, 2.0]), 0).tolist() == [1.0, 2.0]
    assert context.devices == rx.get_strategy().extended.worker_devices


def test_reductions_change_nothing():
    strategy = rx.get_strategy()
    value = {"a": jnp.ones(2), "b": 3}
    assert strategy.reduce("SUM", value, axis=None) is value
    assert strategy.gather(value, axis=0) is value
    assert strategy.experimental_local_results(value) == (value,)


def test_an_axis_is_reduced():
    # Semantics 2.3: with axis, the default strategy reduces over that axis.
    assert float(rx.get_strategy().reduce("MEAN", np.array([1.0, 3.0]), axis=0)) == 2.0


def test_its_devices_are_jaxs():
    assert rx.get_strategy().extended.worker_devices == ("CPU:0",)
    assert rx.get_strategy().extended.parameter_devices == ("CPU:0",)
