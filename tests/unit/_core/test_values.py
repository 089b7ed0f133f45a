"""`PerReplica` and `Mirrored`: components, pytrees, and what they refuse to be."""

import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax._core.errors import PerReplicaMisuse
from replicax._core.topology import Topology
from replicax._core.values import (
    DistributedValues,
    Mirrored,
    PerReplica,
    is_distributed,
    refuse_text,
)

EVEN = PerReplica(jnp.array([[1.0, 2.0], [3.0, 4.0]]))
UNEVEN = PerReplica(parts=(jnp.ones(2), jnp.ones(1)))

MISUSES = {
    "float": float,
    "len": len,
    "list": list,
    "index": lambda v: v[0],
    "add": lambda v: v + 1,
    "divide": lambda v: v / 2,
    "matmul": lambda v: v @ v,
    "negate": operator.neg,
    "numpy()": lambda v: v.numpy(),
    "numpy": np.asarray,
    "jax.numpy": jnp.asarray,
}


@pytest.mark.parametrize("misuse", MISUSES.values(), ids=MISUSES)
@pytest.mark.parametrize("value", [EVEN, UNEVEN], ids=["even", "uneven"])
def test_a_per_replica_value_is_no_array(value, misuse):
    with pytest.raises(PerReplicaMisuse, match="one array: it holds 2"):
        misuse(value)


def test_values_of_an_array_that_is_everywhere_count_each_replica_once():
    # A step of uneven batches leaves its results whole on every device.
    topology = Topology.local(["CPU:0", "CPU:1"])
    value = PerReplica(jax.device_put(np.arange(2.0), topology.replicated))
    assert [int(part) for part in value.values] == [0, 1]


def test_values_can_be_read_while_tracing():
    total = jax.jit(lambda stacked: sum(PerReplica(stacked).values))(jnp.arange(3.0))
    assert float(total) == 3.0


@pytest.mark.parametrize(
    "value", [EVEN, UNEVEN, Mirrored(jnp.ones(2), 3)], ids=["even", "uneven", "mirrored"]
)
def test_values_are_pytrees(value):
    doubled = jax.tree.map(lambda leaf: 2 * leaf, value)
    assert type(doubled) is type(value)
    for part, twice in zip(value.values, doubled.values, strict=True):
        np.testing.assert_array_equal(twice, 2 * part)


def test_values_pass_through_jit():
    result = jax.jit(lambda v: v)(Mirrored(jnp.ones(2), 3))
    assert isinstance(result, Mirrored)
    assert result.num_replicas == 3
    assert not jax.jit(lambda v: v)(UNEVEN).is_even


def test_a_per_replica_value_shows_each_component():
    shown = repr(PerReplica(np.array([1, 2])))
    assert shown.startswith("PerReplica:{\n  0: ")
    assert "\n  1: " in shown


def test_a_mirrored_value_acts_as_one_array():
    value = Mirrored(jnp.float32(2.5), 4)
    assert float(value) == 2.5
    assert int(value) == 2
    assert bool(value)
    assert f"{value:.2f}" == "2.50"
    assert "Mirrored:{" in f"{value}"
    assert float(jnp.add(value, 1.0)) == 3.5
    assert np.asarray(value, dtype="int32").dtype == "int32"
    assert len(value.values) == 4


def test_a_copy_of_a_mirrored_value_is_the_users():
    copied = np.array(Mirrored(jnp.ones(2), 2))
    copied[0] = 5.0
    assert copied.tolist() == [5.0, 1.0]


@pytest.mark.parametrize(
    ("value", "distributed"),
    [(EVEN, True), (UNEVEN, True), (Mirrored(1, 2), True), (jnp.ones(2), False), (None, False)],
)
def test_what_is_distributed(value, distributed):
    assert is_distributed(value) is distributed
    assert isinstance(value, DistributedValues) is distributed


@pytest.mark.parametrize("array", [np.array(["a"]), np.array([b"a"]), np.array([None, 1])])
def test_text_does_not_go_to_devices(array):
    with pytest.raises(rx.errors.UsageError, match="text.*`InputOptions"):
        refuse_text(array)


@pytest.mark.parametrize("array", [np.ones(2), jnp.ones(2), np.bool_(True), 3.0])
def test_numbers_do(array):
    refuse_text(array)
