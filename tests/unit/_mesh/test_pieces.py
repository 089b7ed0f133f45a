"""Pieces of a batch onto the devices."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from replicax._core.topology import Topology
from replicax._core.values import PerReplica
from replicax._mesh.engine import put_pieces

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
