"""Compressed sums: nothing is lost in the long run, and fewer bytes travel."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from replicax._core.compression import BFloat16, Int8, compression_of
from replicax._core.errors import UsageError
from replicax._core.topology import AXIS, Topology


def summed(compression, vectors, left=None):
    """One step of as many replicas as there are vectors."""
    replicas, size = np.shape(vectors)
    kept = compression.left_over(size, replicas)
    left = jnp.zeros((replicas, max(kept, 1))) if left is None else left

    def step(vector, left):
        return compression.sum(vector, left, replicas)

    return jax.jit(jax.vmap(step, axis_name=AXIS))(jnp.asarray(vectors, "float32"), left)


def numbers(replicas, size):
    return np.random.default_rng(0).normal(size=(replicas, size)).astype("float32")


def test_halves_are_added_up_in_full():
    # 257 has no room in the 8 bits of bfloat16: it is 256, or 258.
    totals, _ = summed(BFloat16(), [[1.0, 257.0, 0.5], [2.0, 0.0, 0.25]])
    assert totals.tolist() == [[3.0, 256.0, 0.75]] * 2


def test_a_byte_each_and_a_scale():
    # The largest, 127, makes the scale 1: the others are rounded to whole numbers.
    totals, left = summed(Int8(), [[127.0, 2.25, 0.0], [0.0, 0.0, -127.0]])
    assert totals.tolist() == [[127.0, 2.0, -127.0]] * 2
    assert left[0, :3].tolist() == [0.0, 0.25, 0.0]


@pytest.mark.parametrize("replicas", [2, 3])
def test_what_is_not_sent_now_is_sent_later(replicas):
    vectors, left, sent = numbers(replicas, 2100), None, 0.0
    for _ in range(5):
        totals, left = summed(Int8(), vectors, left)
        assert np.array_equal(totals, np.broadcast_to(totals[0], totals.shape))  # bit for bit
        sent = sent + np.asarray(totals[0], "float64")
    # All that was given is in what was sent or in what is left over of it.
    rest = np.asarray(left, "float64")
    chunk = rest.shape[1] // (replicas + 1)
    rest = rest[:, :-chunk].sum(0) + rest[:, -chunk:].ravel()
    np.testing.assert_allclose(sent + rest[:2100], 5 * vectors.sum(0), rtol=1e-4, atol=1e-4)
    assert np.abs(rest).max() > 0


@pytest.mark.parametrize("compression", [BFloat16(), Int8()])
def test_rounding_is_small(compression):
    vectors = numbers(2, 5000)
    totals, _ = summed(compression, vectors)
    assert np.abs(totals[0] - vectors.sum(0)).max() < 0.08  # two roundings of 4 / 127, or of 2⁻⁸


def test_an_overflow_does_not_stay():
    totals, left = summed(Int8(), [[np.inf, 1.0], [1.0, 1.0]])
    assert not np.isfinite(totals).all()
    assert np.isfinite(left).all()


def bytes_of_collectives(compression, size):
    """What a device hands to collectives in the compiled program, by kind."""
    topology = Topology.local(["CPU:0", "CPU:1"])

    def step(vector, left):
        total, left = compression.sum(vector[0], left[0], 2)
        return total[None], left[None]

    kept = max(compression.left_over(size, 2), 1)
    split = PartitionSpec(AXIS)
    mapped = jax.shard_map(step, mesh=topology.mesh, in_specs=split, out_specs=split)
    text = jax.jit(mapped).lower(jnp.zeros((2, size)), jnp.zeros((2, kept))).compile().as_text()
    found = re.findall(r"= (\S+)\[([\d,]*)\]\S* (all-\w+)\(", text)
    found += re.findall(r"\((\w+)\[([\d,]*)\].*?\) (all-to-all)\(", text)
    width = {"s8": 1, "u16": 2, "f32": 4}
    total = {}
    for kind, shape, name in found:
        count = int(np.prod([int(length) for length in shape.split(",") if length]))
        total[name] = total.get(name, 0) + count * width[kind]
    return total


@pytest.mark.parametrize(
    ("compression", "most"),
    [
        (BFloat16(), 2 * 10240),  # of the exchange and of the gather
        (Int8(), 10240 + 4 * 10),  # one scale for 1024
    ],
)
def test_fewer_bytes_travel(compression, most):
    found = bytes_of_collectives(compression, 10240)
    assert found
    assert "all-reduce" not in found
    assert max(found.values()) <= most < 4 * 10240


def test_names_stand_for_compressions():
    assert compression_of("int8") == Int8()
    assert compression_of(BFloat16()) == BFloat16()
    assert compression_of(None) is None


def test_an_unknown_compression_is_refused():
    with pytest.raises(UsageError, match=r"`compression` must be .*'bf16'"):
        compression_of("zip")
