"""Device names and the mesh of replicas."""

import dataclasses

import jax
import pytest

from replicax._core.errors import UnknownDevice, UsageError
from replicax._core.topology import (
    AXIS,
    MODEL,
    Topology,
    central_device,
    default_device,
    device_name,
    may_deadlock,
    parse_device,
)

CPUS = jax.devices("cpu")


@pytest.mark.parametrize(
    ("name", "index"),
    [
        ("CPU:0", 0),
        ("cpu:3", 3),
        ("/cpu:2", 2),
        ("/CPU:2", 2),
        ("/device:CPU:1", 1),
        ("device:cpu:1", 1),
        ("cpu", 0),
        (" CPU:1 ", 1),
        ("/job:localhost/replica:0/task:0/device:CPU:4", 4),
        ("/job:worker/device:CPU:4", 4),
    ],
)
def test_a_device_has_many_names(name, index):
    assert parse_device(name) is CPUS[index]


def test_a_device_is_its_own_name():
    assert parse_device(CPUS[5]) is CPUS[5]
    assert parse_device(device_name(CPUS[5])) is CPUS[5]
    assert device_name(CPUS[5]) == "CPU:5"


@pytest.mark.parametrize("name", ["GPU:0", "CPU:8", "CPU:-1", "XYZ:0", "", "CPU:0:1", "0", 3])
def test_an_unknown_device_is_an_error_that_lists_the_known(name):
    # Section 0: tf.distribute takes the CPU, silently.
    with pytest.raises(UnknownDevice, match="here; JAX sees CPU:0-7"):
        parse_device(name)


def test_without_a_name_it_is_jaxs_default_device():
    assert Topology.single().devices == (jax.devices()[0],)
    with jax.default_device(CPUS[2]):
        assert default_device() is CPUS[2]
        assert Topology.single().devices == (CPUS[2],)


def test_the_default_device_may_be_a_name():
    with jax.default_device("cpu"):
        assert default_device().platform == "cpu"


def test_a_topology_is_a_value():
    one, other = Topology.local(["CPU:0", "CPU:1"]), Topology.local(["CPU:0", "CPU:1"])
    assert one == other
    with pytest.raises(dataclasses.FrozenInstanceError):
        one.process_index = 1


def test_central_storage_is_on_the_only_device_or_the_first_cpu():
    assert central_device(Topology.local(["CPU:3"])) is CPUS[3]
    assert central_device(Topology.local(["CPU:3", "CPU:4"])) is CPUS[0]


def test_several_devices_may_hold_one_replica():
    topology = Topology.local(
        ["CPU:0", "CPU:1", "CPU:2", "CPU:3", "CPU:5", "CPU:4"], model_parallel=2
    )
    assert topology.mesh.shape == {AXIS: 3, MODEL: 2}
    assert (topology.num_replicas, topology.model_parallel) == (3, 2)
    assert [device.id for device in topology.devices] == [0, 1, 2, 3, 5, 4]
    assert topology.names == ("CPU:0", "CPU:2", "CPU:5")
    assert topology.local_replicas == (0, 1, 2)


def test_one_device_per_replica_is_a_mesh_of_one_axis():
    assert Topology.local(["CPU:0", "CPU:1"], model_parallel=1) == Topology.local(
        ["CPU:0", "CPU:1"]
    )
    assert Topology.local(["CPU:0"]).model_parallel == 1


def test_one_replica_on_several_devices_may_deadlock():
    assert Topology.of(CPUS[:2], 2).num_replicas == 1
    assert may_deadlock(Topology.of(CPUS[:2], 2).devices)


@pytest.mark.parametrize(("count", "model_parallel"), [(6, 4), (2, 4), (4, 0)])
def test_replicas_have_as_many_devices_each(count, model_parallel):
    with pytest.raises(UsageError, match="`model_parallel` must divide"):
        Topology.of(CPUS[:count], model_parallel)


class Described:
    """A device of a machine that is not here, as `jax.experimental.topologies` describes them."""

    class client:
        @staticmethod
        def local_devices():
            return []

    platform, id = "tpu", 5


def test_a_device_that_is_only_described_has_its_id_for_a_name(monkeypatch):
    monkeypatch.setattr(jax, "local_devices", lambda **_: pytest.fail("a backend was asked"))
    assert device_name(Described()) == "TPU:5"


def test_platforms_that_are_not_here(monkeypatch):
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")

    def local_devices(**_):
        raise AssertionError  # as JAX does

    monkeypatch.setattr(jax, "local_devices", local_devices)
    for devices in (None, ["GPU:0"]):
        with pytest.raises(UnknownDevice, match="JAX_PLATFORMS"):
            Topology.local(devices)
