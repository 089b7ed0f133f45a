"""`ModelParallelStrategy`: which devices hold which replica, and where its variables live.

That it trains as one device does is in conformance/test_divided.py.
"""

import keras
import pytest

import replicax as rx

FOUR = [f"CPU:{i}" for i in range(4)]


def shares(variable):
    """The shape of the part on each device, by the device's number."""
    shards = variable.value.addressable_shards
    return {shard.device.id: shard.data.shape for shard in shards}


def test_neighbours_hold_one_replica():
    strategy = rx.ModelParallelStrategy(model_parallel=2, devices=FOUR)
    assert strategy.num_replicas_in_sync == 2
    assert strategy.extended.worker_devices == ("CPU:0", "CPU:2")
    assert strategy.extended.parameter_devices == tuple(FOUR)
    with strategy.scope():
        layer = keras.layers.Dense(64)
        layer.build((None, 32))
    assert shares(layer.kernel) == dict.fromkeys(range(4), (32, 32))
    assert shares(layer.bias) == dict.fromkeys(range(4), (64,))


def test_optimizers_may_be_divided_over_the_replicas_too():
    strategy = rx.ModelParallelStrategy(model_parallel=2, devices=FOUR, shard_optimizer=True)
    with strategy.scope():
        kernel = keras.Variable(keras.ops.ones((32, 64)))
        optimizer = keras.optimizers.SGD(momentum=0.9)
        optimizer.build([kernel])
    assert shares(kernel) == dict.fromkeys(range(4), (32, 32))
    assert shares(optimizer.variables[-1]) == dict.fromkeys(range(4), (16, 32))


def test_the_devices_must_be_divisible():
    with pytest.raises(rx.errors.UsageError, match="`model_parallel` must divide .*, 4, got 3"):
        rx.ModelParallelStrategy(model_parallel=3, devices=FOUR)


def test_a_replica_of_several_devices_gives_plain_arrays_if_it_is_the_only_one():
    strategy = rx.ModelParallelStrategy(model_parallel=4, devices=FOUR)
    (batch,) = strategy.experimental_distribute_dataset([keras.ops.ones((3, 2))])
    assert float(strategy.run(lambda rows: rows.sum(), args=(batch,))) == 6.0
