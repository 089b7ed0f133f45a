"""Where the devices of a TPU are, and which replicas they form."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest

from replicax import errors
from replicax.tpu._topology import assigned_devices
from replicax.tpu.experimental import DeviceAssignment, Topology

# A v2-16: two hosts of a 2 × 2 mesh each, side by side along x, with two cores on a chip.
V2_16 = [
    [[2 * host + x, y, 0, core] for y in range(2) for x in range(2) for core in range(2)]
    for host in range(2)
]


def described(host, number, coords, core=0, **more):
    return SimpleNamespace(process_index=host, id=number, coords=coords, core_on_chip=core, **more)


def test_a_mesh_and_its_devices():
    topology = Topology(mesh_shape=[4, 2, 1, 2], device_coordinates=V2_16)
    assert (topology.num_tasks, topology.num_tpus_per_task, topology.mesh_rank) == (2, 8, 4)
    assert topology.mesh_shape.tolist() == [4, 2, 1, 2]
    assert topology.missing_devices.size == 0
    # The chip at (3, 1) is the last of the second host; its cores are devices 6 and 7 there.
    place = [3, 1, 0, 1]
    assert topology.task_ordinal_at_coordinates(place) == 1
    assert topology.tpu_device_ordinal_at_coordinates(place) == 7
    assert topology.tpu_device_name_at_coordinates(place) == "/task:1/device:TPU:7"
    assert topology.cpu_device_name_at_coordinates(place, "worker") == (
        "/job:worker/task:1/device:CPU:0"
    )
    assert topology.device_at_coordinates(place) is None


def test_it_travels_as_text():
    topology = Topology(mesh_shape=[4, 2, 1, 2], device_coordinates=V2_16)
    again = Topology(serialized=topology.serialized())
    assert again.mesh_shape.tolist() == [4, 2, 1, 2]
    assert again.device_coordinates.tolist() == V2_16


def test_a_chip_may_be_missing():
    topology = Topology(mesh_shape=[2, 2, 1, 1], device_coordinates=[[[0, 0, 0, 0], [1, 1, 0, 0]]])
    assert topology.missing_devices.tolist() == [[0, 1, 0, 0], [1, 0, 0, 0]]
    with pytest.raises(errors.UsageError, match="No device at"):
        topology.tpu_device_ordinal_at_coordinates([0, 1, 0, 0])


@pytest.mark.parametrize("place", [[0, 0, 0], [2, 0, 0, 0], [-1, 0, 0, 0]])
def test_coordinates_outside_of_the_mesh(place):
    topology = Topology(mesh_shape=[2, 1, 1, 1], device_coordinates=[[[0] * 4, [1, 0, 0, 0]]])
    with pytest.raises(errors.UsageError, match="No device at"):
        topology.task_ordinal_at_coordinates(place)


@pytest.mark.parametrize(
    ("mesh_shape", "coordinates"),
    [([2, 2], [[[0] * 4]]), ([1, 1, 1, 1], [[0] * 4]), ([1, 1, 1, 1], [[[0, 1, 0, 0]]])],
)
def test_numbers_that_are_no_topology(mesh_shape, coordinates):
    with pytest.raises(errors.UsageError, match="mesh_shape="):
        Topology(mesh_shape=mesh_shape, device_coordinates=coordinates)


def test_of_devices():
    # The part of a slice that begins at (2, 2).
    devices = [described(number // 2, number, [2 + number, 2, 0]) for number in range(4)]
    topology = Topology.of(devices[::-1])
    assert topology.mesh_shape.tolist() == [4, 1, 1, 1]
    assert topology.device_coordinates[:, :, 0].tolist() == [[0, 1], [2, 3]]
    assert topology.device_at_coordinates([3, 0, 0, 0]) is devices[3]


def test_slices_lie_behind_each_other():
    devices = [described(host, host, [0, 0, 0], slice_index=host) for host in range(2)]
    assert Topology.of(devices).device_coordinates.tolist() == [[[0, 0, 0, 0]], [[0, 0, 1, 0]]]


def test_hosts_with_different_numbers_of_devices():
    devices = [described(host, number, [number, 0, 0]) for number, host in enumerate([0, 0, 1])]
    with pytest.raises(errors.UsageError, match="different numbers of devices"):
        Topology.of(devices)


@pytest.mark.parametrize(("count", "mesh"), [(8, [2, 4]), (4, [2, 2]), (3, [1, 3]), (1, [1, 1])])
def test_devices_that_are_no_tpu_lie_as_those_of_a_v5e(count, mesh):
    topology = Topology.of(jax.devices()[:count])
    assert topology.mesh_shape.tolist() == [*mesh, 1, 1]
    numbers = np.arange(count)
    assert topology.device_coordinates[0, :, 0].tolist() == (numbers % mesh[0]).tolist()
    assert topology.device_coordinates[0, :, 1].tolist() == (numbers // mesh[0]).tolist()


@pytest.fixture
def eight():
    """The virtual devices: x = number % 2, y = number // 2."""
    return Topology.of(jax.devices())


def places(assignment):
    return [[tuple(place[:2]) for place in replica] for replica in assignment.core_assignment]


def test_one_device_each(eight):
    assignment = DeviceAssignment.build(eight, num_replicas=3)
    assert (assignment.num_replicas, assignment.num_cores_per_replica) == (3, 1)
    assert places(assignment) == [[(0, 0)], [(1, 0)], [(0, 1)]]
    assert assignment.topology is eight


def test_squares(eight):
    assignment = DeviceAssignment.build(eight, [2, 2, 1, 1], num_replicas=2)
    assert places(assignment) == [
        [(0, 0), (0, 1), (1, 0), (1, 1)],
        [(0, 2), (0, 3), (1, 2), (1, 3)],
    ]
    assert assignment.coordinates(1, 2) == (1, 2, 0, 0)
    # (1, 2) is device 1 + 2 · 2.
    assert assignment.tpu_ordinal(1, 2) == 5
    assert assignment.tpu_device(1, 2, job="worker") == "/job:worker/task:0/device:TPU:5"
    assert assignment.host_device(1, 2) == "/task:0/device:CPU:0"


def test_devices_of_a_replica_may_be_apart(eight):
    assert places(DeviceAssignment.build(eight, [1, 2, 1, 1], [1, 2, 1, 1], num_replicas=4)) == [
        [(0, 0), (0, 2)],
        [(1, 0), (1, 2)],
        [(0, 1), (0, 3)],
        [(1, 1), (1, 3)],
    ]


def test_both_cores_of_a_chip_come_first():
    cores = [[x, 0, 0, core] for x in range(2) for core in range(2)]
    topology = Topology(mesh_shape=[2, 1, 1, 2], device_coordinates=[cores])
    assignment = DeviceAssignment.build(topology, num_replicas=3)
    assert assignment.core_assignment[:, 0].tolist() == [[0, 0, 0, 0], [0, 0, 0, 1], [1, 0, 0, 0]]


def test_replicas_are_looked_up_by_host():
    hosts = [[[x, y, 0, 0] for x in range(2)] for y in range(2)]
    topology = Topology(mesh_shape=[2, 2, 1, 1], device_coordinates=hosts)
    assignment = DeviceAssignment.build(topology, [2, 1, 1, 1], num_replicas=2)
    assert [assignment.lookup_replicas(host, 1) for host in range(2)] == [[0], [1]]
    with pytest.raises(errors.UsageError, match="no logical device"):
        assignment.lookup_replicas(0, 2)


@pytest.mark.parametrize(
    ("shape", "stride", "replicas"),
    [
        ([2, 2, 1, 1], None, 3),
        ([1, 1, 1, 2], None, 1),  # the two cores of a TPU v2 or v3
        ([1, 3, 1, 1], [1, 2, 1, 1], 1),
        ([2, 2], None, 1),
        ([0, 1, 1, 1], None, 1),
        (None, None, 0),
    ],
)
def test_replicas_that_do_not_fit(eight, shape, stride, replicas):
    with pytest.raises(errors.UsageError, match="fit into a mesh"):
        DeviceAssignment.build(eight, shape, stride, replicas)


def test_a_device_belongs_to_one_replica(eight):
    with pytest.raises(errors.UsageError, match="`core_assignment`.* 1 coord"):
        DeviceAssignment(eight, [[[0, 0, 0, 0]], [[0, 0, 0, 0]]])


def test_the_devices_of_an_assignment(eight):
    devices = jax.devices()
    assignment = DeviceAssignment.build(eight, [1, 2, 1, 1], num_replicas=4)
    found = assigned_devices(assignment, devices)
    assert [device.id for device in found] == [0, 2, 1, 3, 4, 6, 5, 7]
    # An assignment that came as text finds the same ones.
    numbers = Topology(serialized=eight.serialized())
    again = DeviceAssignment(numbers, assignment.core_assignment)
    assert assigned_devices(again, devices) == found


class Device:
    """A device of another host, or of a TPU that is only described."""

    platform, device_kind, core_on_chip = "tpu", "TPU v4", 0

    def __init__(self, host, number):
        self.process_index, self.id, self.coords = host, number, [number, 0, 0]


def test_a_described_device_computes_nothing():
    topology = Topology.of([Device(0, number) for number in range(8)])
    assignment = DeviceAssignment.build(topology, num_replicas=8)
    with pytest.raises(errors.UnknownDevice, match="to compile for a TPU that is not here"):
        assigned_devices(assignment, jax.devices())


@pytest.mark.parametrize(("shape", "replicas"), [([4, 1, 1, 1], 1), ([1, 1, 1, 1], 2)])
def test_replicas_and_hosts(shape, replicas):
    devices = [Device(number // 2, number) for number in range(4)]
    assignment = DeviceAssignment.build(Topology.of(devices), shape, None, replicas)
    with pytest.raises(errors.UsageError, match="computation_shape"):
        assigned_devices(assignment, devices)
