"""`Strategy`: messages and small things, and the default one; behaviours are in conformance/."""

import contextlib
import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
from replicax._core.context import set_frame
from replicax._core.errors import MixedStrategies, NotInCrossReplicaContext, UsageError


def test_arguments_in_no_list_are_explained(mirrored):
    with pytest.raises(UsageError, match=r"args=\(batch,\)") as caught:
        mirrored.run(lambda x: x, args=np.ones(2))
    assert "ndarray" in str(caught.value)
    assert "`args=(batch,)`, with a comma" in str(caught.value)


def test_a_list_of_arguments_is_as_good_as_a_tuple(mirrored):
    assert float(mirrored.run(lambda x: x, args=[np.float32(2.0)])) == 2.0


def test_mixing_names_both_strategies(mirrored):
    other = rx.OneDeviceStrategy("CPU:3")
    expected = r"<MirroredStrategy with 2 .* is not <OneDeviceStrategy with 1 .* on CPU:3>"
    with other.scope(), pytest.raises(MixedStrategies, match=expected):
        mirrored.run(lambda: 1)


def test_a_cross_replica_method_inside_run_is_explained(mirrored):
    def replica_fn():
        return mirrored.reduce("SUM", jnp.ones(1), axis=None)

    with pytest.raises(NotInCrossReplicaContext, match="requires being in cross-replica context"):
        mirrored.run(replica_fn)


def test_other_methods_point_to_merge_call(mirrored):
    with pytest.raises(RuntimeError, match=r"get_replica_context\(\)\.merge_call\(\)"):
        mirrored.run(lambda: mirrored.run(lambda: 1))


def test_a_scope_entered_by_hand_is_left_by_hand_only(mirrored):
    mirrored.scope().__enter__()  # notebooks keep no scope
    inner = mirrored.scope()
    try:
        gc.collect()
        assert rx.get_strategy() is mirrored
        assert len(keras.Variable(1.0).value.devices()) == 2
        with inner, inner:
            pass
        assert rx.get_strategy() is mirrored
    finally:
        set_frame(None)
        keras.distribution.set_distribution(None)


def test_threads_leave_a_shared_scope_each_to_their_own_outer_one(mirrored):
    shared, both_are_in = mirrored.scope(), threading.Barrier(2)

    def enter(first):
        with mirrored.scope() if first else contextlib.nullcontext():
            with shared:
                both_are_in.wait(20)
            return rx.get_strategy()

    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(enter, [True, False])
    assert first is mirrored
    assert second is not mirrored


def test_a_scope_that_was_not_entered_cannot_be_left(mirrored):
    with pytest.raises(UsageError, match="__enter__"):
        mirrored.scope().__exit__(None, None, None)


def test_a_scope_used_as_a_decorator_is_entered_at_each_call(mirrored):
    @mirrored.scope()
    def current():
        return rx.get_strategy()

    assert current() is mirrored
    assert current() is mirrored


def test_values_from_function_of_one_replica_are_what_was_returned():
    # As in tf.distribute: the raw value.
    sentinel = object()
    one = rx.OneDeviceStrategy("CPU:0")
    assert one.experimental_distribute_values_from_function(lambda context: sentinel) is sentinel


def test_other_options_make_another_program(mirrored):
    def replica_fn():
        return jnp.ones(1)

    mirrored.run(replica_fn)
    bad = rx.RunOptions(experimental_xla_options={"no_such_option": True})
    with pytest.raises(Exception, match="no_such_option"):
        mirrored.run(replica_fn, options=bad)


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
