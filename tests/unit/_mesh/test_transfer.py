"""Pieces of a batch onto the devices; and arrays of other devices."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import SingleDeviceSharding

from replicax._core.topology import Topology
from replicax._core.values import PerReplica
from replicax._mesh.transfer import move_all, put_pieces

TWO = Topology.local(["CPU:1", "CPU:3"])


def test_even_pieces_lie_on_their_devices():
    value = put_pieces(TWO, [{"x": np.ones((2, 3)), "y": 1.0}, {"x": np.zeros((2, 3)), "y": 2.0}])
    assert value["x"].is_even
    assert value["x"].stacked.shape == (2, 2, 3)
    assert [part.devices() for part in value["x"].values] == [{d} for d in TWO.devices]
    assert [float(part) for part in value["y"].values] == [1.0, 2.0]


def test_uneven_pieces_are_on_every_device():
    # Every device computes all of them: see uneven.py.
    value = put_pieces(TWO, [np.ones((2, 3)), np.ones((1, 3))])
    assert not value.is_even
    assert [part.shape for part in value.parts] == [(2, 3), (1, 3)]
    assert all(part.devices() == set(TWO.devices) for part in value.parts)


def test_with_one_replica_there_are_plain_arrays():
    (x, y) = put_pieces(Topology.single("CPU:2"), [(np.ones(3), jnp.zeros(2))])
    assert isinstance(x, jax.Array)
    assert {device.id for leaf in (x, y) for device in leaf.devices()} == {2}


@pytest.mark.parametrize("rows", [(4, 4), (4, 2)], ids=["even", "uneven"])
@pytest.mark.parametrize("replicas", [1, 2])
def test_a_loader_may_reuse_its_buffer(rows, replicas):
    # 64-byte aligned: what `device_put` takes as it is on the CPU.
    memory = np.zeros(4 * 16 + 16, "float32")
    start = -memory.ctypes.data % 64 // 4
    buffer = memory[start : start + 4 * 16].reshape(4, 16)
    topology = TWO if replicas == 2 else Topology.single("CPU:0")
    value = put_pieces(topology, [buffer[:count] for count in rows[:replicas]])
    memory[:] = 7.0
    parts = value.values if isinstance(value, PerReplica) else (value,)
    assert [float(part.max()) for part in parts] == [0.0] * replicas


def test_nothing_stays_nothing():
    assert put_pieces(TWO, [None, None]) is None
    assert put_pieces(TWO, [(), ()]) == ()


AWAY = Topology.local(["CPU:1", "CPU:2"]).replicated
HOME = SingleDeviceSharding(jax.devices()[0])

VALUES = (
    [np.arange(6, dtype="float32").reshape(2, 3), np.float32(7.0), np.zeros((0, 4), "float32")],
    {
        "seed": np.array([2**32 - 1, 5], "uint32"),
        "flag": np.array([True, False]),
        "half": np.array([1.5, -2.0], "float16"),
        "large": np.arange(1 << 18, dtype="float32"),
    },
)


@pytest.mark.parametrize(("start", "end"), [(HOME, AWAY), (AWAY, HOME)])
def test_arrays_arrive_as_they_were(start, end):
    moved = move_all(jax.device_put(VALUES, start), end)
    assert jax.tree.structure(moved) == jax.tree.structure(VALUES)
    for value, expected in zip(jax.tree.leaves(moved), jax.tree.leaves(VALUES), strict=True):
        assert value.sharding.is_equivalent_to(end, value.ndim)
        assert value.dtype == expected.dtype
        for shard in value.addressable_shards:
            np.testing.assert_array_equal(shard.data, expected)


def test_keys_travel_too():
    key = jax.device_put(jax.random.key(1), HOME)
    (moved,) = move_all([key], AWAY)
    assert moved.sharding.is_equivalent_to(AWAY, 0)
    assert jax.random.key_data(moved).tolist() == jax.random.key_data(key).tolist()


def address(array, device):
    (shard,) = (s for s in array.addressable_shards if s.device.id == device)
    return shard.data.unsafe_buffer_pointer()


def test_devices_of_cpus_share_the_memory():
    values = [jax.device_put(np.full((2, 3), i, "float32"), HOME) + 1 for i in range(3)]
    moved = move_all(values, AWAY)
    for value, there in zip(values, moved, strict=True):
        assert {address(there, 1), address(there, 2)} == {address(value, 0)}


def test_memory_that_is_shared_is_not_used_again():
    (value,) = [jax.device_put(np.zeros((2, 3), "float32"), HOME) + 1]
    (there,) = move_all([value], AWAY)
    assert jax.jit(lambda x: x + 5, donate_argnums=0)(value).tolist() == [[6.0] * 3] * 2
    assert there.tolist() == [[1.0] * 3] * 2
