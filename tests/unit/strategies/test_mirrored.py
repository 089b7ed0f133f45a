"""`MirroredStrategy`: which devices, and where variables live."""

import jax
import keras
import numpy as np
import pytest

import replicax as rx


def devices_of(strategy):
    with strategy.scope():
        return sorted(device.id for device in keras.Variable(1.0).value.devices())


def test_variables_are_on_every_device():
    assert devices_of(rx.MirroredStrategy(["CPU:3", "/cpu:1", jax.devices()[5]])) == [1, 3, 5]


@pytest.mark.parametrize("devices", [None, []])
def test_by_default_every_local_device_is_a_replica(devices):
    assert rx.MirroredStrategy(devices).num_replicas_in_sync == 8


def test_one_device_is_enough():
    strategy = rx.MirroredStrategy(["CPU:2"])
    assert strategy.num_replicas_in_sync == 1
    assert devices_of(strategy) == [2]


def test_a_device_holds_one_replica():
    with pytest.raises(ValueError, match="named more than once"):
        rx.MirroredStrategy(["CPU:0", "CPU:1", "/cpu:0"])


def test_the_cross_device_operation_is_asked():
    class Doubled(rx.CrossDeviceOps):
        def combine(self, op, leaves, group):
            return [2 * leaf for leaf in super().combine(op, leaves, group)]

    strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"], Doubled())
    result = strategy.run(lambda: rx.get_replica_context().all_reduce("SUM", 1.0))
    assert float(result) == 4.0


def test_it_shows_its_devices():
    shown = repr(rx.MirroredStrategy(["CPU:1", "CPU:0"]))
    assert shown == "<MirroredStrategy with 2 replica(s) on CPU:1, CPU:0>"


@pytest.mark.parametrize(
    ("devices", "names"),
    [
        (2, ("CPU:0", "CPU:1")),
        (np.int64(2), ("CPU:0", "CPU:1")),
        ("cpu", tuple(f"CPU:{i}" for i in range(8))),
        ("CPU:3", ("CPU:3",)),
        ("CPU:1, cpu:2", ("CPU:1", "CPU:2")),
    ],
)
def test_devices_as_people_write_them(devices, names):
    assert rx.MirroredStrategy(devices).extended.worker_devices == names


@pytest.mark.parametrize(
    ("devices", "fact"),
    [
        (["GPU:0"], "No device 'GPU:0' here"),
        (["CPU:0", "CPU:99"], "No device 'CPU:99' here"),
        (0, "0 devices"),
        (9, "9 devices"),
        ("gpu", "replicax.cuda"),
        ("CPU:9", "virtual_devices"),
        (["cuda:0", "cuda:1"], "'GPU:0'.*replicax.cuda"),
        ("mps:0", "one of these names"),
    ],
)
def test_devices_that_are_not_there_are_named_with_a_fix(devices, fact):
    with pytest.raises(rx.errors.UnknownDevice, match=f"{fact}") as error:
        rx.MirroredStrategy(devices)
    assert "CPU:0-7" in str(error.value)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("nccl", rx.NcclAllReduce),
        ("hierarchical_copy", rx.HierarchicalCopyAllReduce),
        ("reduction_to_one_device", rx.ReductionToOneDevice),
    ],
)
def test_cross_device_ops_by_name(name, kind):
    strategy = rx.MirroredStrategy(2, name)
    assert isinstance(strategy._engine.reducer, kind)
    assert float(strategy.run(lambda: rx.get_replica_context().all_reduce("SUM", 1.0))) == 2.0


@pytest.mark.parametrize("wrong", ["ring", rx.NcclAllReduce, 3])
def test_unknown_cross_device_ops_are_refused(wrong):
    with pytest.raises(rx.errors.UsageError, match="`cross_device_ops` must be .*'nccl'"):
        rx.MirroredStrategy(2, wrong)


@pytest.mark.parametrize("devices", [True, 2.0])
def test_what_is_no_number_of_devices_is_refused(devices):
    with pytest.raises(rx.errors.UsageError, match="`devices` must be"):
        rx.MirroredStrategy(devices)
