"""Values onto devices, and between them. Across processes, see tests/multi_process."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import SingleDeviceSharding

from replicax._core import placement
from replicax._core.placement import (
    aligned,
    copy_array,
    gather_rows,
    is_here,
    move_all,
    place,
    place_all,
    place_batch,
    spans_processes,
)
from replicax._core.topology import Topology

TWO = Topology.local(["CPU:2", "CPU:3"])


@pytest.mark.parametrize("layout", [TWO.replicated, TWO.split])
def test_a_copy_has_memory_of_its_own(layout):
    host = aligned((4,), "float32")  # which devices of a CPU take over and may share
    host[:] = range(4)
    value = place(host, layout)
    copy = copy_array(value)
    assert copy.sharding == layout and copy.tolist() == [0, 1, 2, 3]
    taken, own = (
        {piece.data.unsafe_buffer_pointer() for piece in array.addressable_shards}
        for array in (value, copy)
    )
    assert len(own) == 2 and not own & taken


class Far:
    """A layout that also has devices of others, as far as `place` asks."""

    is_fully_addressable = False


@pytest.mark.parametrize("value", [np.arange(6.0), np.float64(3.0)])
def test_devices_of_others_get_nothing_from_here(monkeypatch, value):
    made = []
    monkeypatch.setattr(jax, "make_array_from_callback", lambda *given: made.append(given))
    monkeypatch.setattr(jax, "device_put", None)  # it would compare with all others
    layout = Far()
    place(value, layout)
    ((shape, where, part),) = made
    assert (shape, where) == (np.shape(value), layout)
    np.testing.assert_array_equal(part(...), value)


def test_a_nest_goes_leaf_by_leaf_to_devices_of_others(monkeypatch):
    monkeypatch.setattr(placement, "place", lambda value, layout: value + 1)
    assert place_all({"a": [1, 2]}, Far()) == {"a": [2, 3]}


def test_leaves_of_a_batch_go_each_where_its_layout_says():
    rows, one = np.arange(8.0).reshape(4, 2), np.array(3, "int32")
    home = jax.sharding.SingleDeviceSharding(TWO.devices[1])
    layouts = [TWO.split, TWO.replicated, home]
    for leaves in ([rows, one, rows], [rows, one, jnp.asarray(rows)]):  # the last is on a device
        placed = place_batch(leaves, layouts)
        assert [leaf.sharding for leaf in placed] == layouts
        assert [leaf.tolist() for leaf in placed] == [rows.tolist(), 3, rows.tolist()]
        assert [str(leaf.dtype) for leaf in placed] == ["float32", "int32", "float32"]


def test_rows_that_the_devices_do_not_divide():
    rows = np.arange(6, dtype="int32").reshape(3, 2)
    gathered = gather_rows(rows, [3], TWO.split, TWO.replicated)
    assert gathered.tolist() == rows.tolist()
    assert gathered.sharding == TWO.replicated


def test_of_one_process_all_is_here():
    for value in (np.ones(2), jnp.ones(2), place(np.ones(2), TWO.split), 1.0):
        assert not spans_processes(value)
        assert is_here(value, 1)


def test_a_replica_of_another_process_is_not_here(monkeypatch):
    devices = np.array([SimpleNamespace(process_index=index) for index in (0, 0, 1)])
    mesh = SimpleNamespace(devices=devices)
    value = SimpleNamespace(sharding=SimpleNamespace(mesh=mesh))
    monkeypatch.setattr(placement, "spans_processes", lambda value: True)
    assert [is_here(value, replica) for replica in range(3)] == [True, True, False]


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
