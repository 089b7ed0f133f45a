"""Arrays from devices to others."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.sharding import SingleDeviceSharding

from replicax._core.placement import move_all
from replicax._core.topology import Topology

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
