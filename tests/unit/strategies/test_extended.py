"""`strategy.extended`, for code written against tf.distribute."""

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx

from helpers import per_replica


@pytest.fixture
def variable(mirrored):
    with mirrored.scope():
        return keras.Variable(1.0)


def two(mirrored, first=1.0, second=2.0):
    return per_replica(mirrored, np.float32(first), np.float32(second))


def test_devices(mirrored):
    assert mirrored.extended.worker_devices == ("CPU:0", "CPU:1")
    assert mirrored.extended.parameter_devices == ("CPU:0", "CPU:1")
    central = rx.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:5")
    assert central.extended.worker_devices == ("CPU:0", "CPU:1")
    assert central.extended.parameter_devices == ("CPU:5",)


def test_no_strategy_needs_static_shapes(mirrored):
    assert mirrored.extended.experimental_require_static_shapes is False


def test_a_value_is_reduced_to_a_device(mirrored):
    result = mirrored.extended.reduce_to("SUM", two(mirrored), "CPU:6")
    assert float(result) == 3.0
    assert [device.id for device in result.value.devices()] == [6]


def test_a_value_reduced_to_itself_is_on_every_replica(mirrored):
    value = two(mirrored)
    result = mirrored.extended.reduce_to(rx.ReduceOp.MEAN, value, destinations=value)
    assert [float(part) for part in result.values] == [1.5, 1.5]


def test_nests_are_reduced_leaf_by_leaf(mirrored):
    value = {"a": two(mirrored), "b": [two(mirrored, 3.0, 4.0)]}
    result = mirrored.extended.reduce_to("SUM", value, destinations=None)
    assert float(result["a"]) == 3.0
    assert float(result["b"][0]) == 7.0


def test_pairs_are_reduced_in_one_call(mirrored):
    pairs = [(two(mirrored), None), (two(mirrored, 3.0, 4.0), "CPU:2")]
    first, second = mirrored.extended.batch_reduce_to("MEAN", pairs)
    assert (float(first), float(second)) == (1.5, 3.5)


def test_one_replica_gives_plain_values():
    one = rx.OneDeviceStrategy("CPU:0")
    assert float(one.extended.reduce_to("SUM", jnp.float32(2.0), None)) == 2.0


def test_an_update_runs_where_the_variable_lives(mirrored, variable):
    def add(var, amount, *, scale):
        var.assign_add(amount * scale)
        return var.value

    amount = mirrored.extended.reduce_to("SUM", two(mirrored), None)
    with mirrored.scope():
        result = mirrored.extended.update(variable, add, (amount,), {"scale": 10.0})
    assert float(result) == 31.0
    assert float(variable.value) == 31.0


def test_an_ungrouped_update_gives_one_result_per_replica(mirrored, variable):
    result = mirrored.extended.update(variable, lambda var: var.path, group=False)
    assert result == (variable.path,) * 2


def test_an_update_inside_merge_call(mirrored, variable):
    # How tf.distribute's optimizers are written.
    def merge(strategy, value):
        total = strategy.extended.reduce_to("SUM", value, destinations=variable)
        strategy.extended.update(variable, lambda var, t: var.assign_sub(t), args=(total,))

    def replica_fn(value):
        rx.get_replica_context().merge_call(merge, args=(value,))

    mirrored.run(replica_fn, args=(two(mirrored),))
    assert float(variable.value) == 1.0 - 3.0


def test_variables_are_made_beside_another(mirrored, variable):
    with mirrored.extended.colocate_vars_with(variable):
        beside = keras.Variable(2.0)
    assert beside.value.devices() == variable.value.devices()
    with mirrored.extended.colocate_vars_with(keras.Variable(3.0)):
        plain = keras.Variable(4.0)
    assert len(plain.value.devices()) == 1


def test_whose_variable_it_is(mirrored, variable):
    other = rx.MirroredStrategy(["CPU:0", "CPU:1"])
    assert mirrored.extended.variable_created_in_scope(variable)
    assert not other.extended.variable_created_in_scope(variable)
    assert not mirrored.extended.variable_created_in_scope(keras.Variable(1.0))


def test_a_variable_is_its_own_container(mirrored, variable):
    assert mirrored.extended.value_container(variable) is variable


def test_the_older_name_of_run(mirrored):
    result = mirrored.extended.call_for_each_replica(lambda x, y: x + y, (1.0,), {"y": 2.0})
    assert result == 3.0


def test_the_engine_is_one_view(mirrored):
    assert mirrored.extended is mirrored.extended
