"""Tensors in buffers: how large these are, and that nothing is lost or mixed up."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from replicax._core.packing import combine_packed, sum_in_packs
from replicax._core.topology import AXIS


def leaves():
    shapes = [(5,), (), (2, 3), (0, 2), (1,)]
    made = [jnp.arange(np.prod(shape), dtype="float32").reshape(shape) for shape in shapes]
    made.insert(2, jnp.arange(4, dtype="int32"))
    made.append(jnp.ones(3, "bfloat16"))
    return made


class Buffers:
    """A `combine` that doubles, and notes the buffers it was given."""

    def __init__(self):
        self.seen = []

    def __call__(self, buffers):
        self.seen += [(str(buffer.dtype), buffer.size) for buffer in buffers]
        return [2 * buffer for buffer in buffers]


@pytest.mark.parametrize("size", [0, 1, 8, 20, 1000])
def test_every_tensor_comes_back_in_its_place(size):
    given, combine = leaves(), Buffers()
    results = combine_packed(given, combine, bytes_per_pack=size)
    for leaf, result in zip(given, results, strict=True):
        assert (leaf.shape, leaf.dtype) == (result.shape, result.dtype)
        np.testing.assert_array_equal(np.asarray(result), 2 * np.asarray(leaf))
    types = [kind for kind, _ in combine.seen]
    assert types == sorted(types)  # one type after the other, never in one buffer


@pytest.mark.parametrize(
    ("size", "elements"),
    [
        (0, [13]),
        (1, [1, 6, 1, 5]),  # the empty one goes with the one behind it
        (8, [7, 6]),  # the last tensors come first; a pack is full when it is larger than 8 bytes
        (27, [7, 6]),
        (28, [8, 5]),
        (1000, [13]),
    ],
)
def test_a_pack_is_full_from_a_size_on(size, elements):
    combine = Buffers()
    floats = [leaf for leaf in leaves() if leaf.dtype == "float32"]
    combine_packed(floats, combine, bytes_per_pack=size)
    assert [count for _, count in combine.seen] == elements


def test_the_size_of_a_pack_comes_before_their_number():
    combine = Buffers()
    combine_packed([jnp.ones(4)] * 6, combine, num_packs=3, bytes_per_pack=1)
    assert combine.seen == [("float32", 4)] * 6
    combine = Buffers()
    combine_packed([jnp.ones(4)] * 6, combine, num_packs=3)
    assert combine.seen == [("float32", 8)] * 3


def test_a_pack_has_no_more_arrays_than_that():
    combine = Buffers()
    combine_packed([jnp.ones(i) for i in range(1, 8)], combine, most=3)
    assert combine.seen == [("float32", 7 + 6 + 5), ("float32", 4 + 3 + 2), ("float32", 1)]


@pytest.mark.parametrize(
    ("sizes", "buffers"), [((0, 0), [100, 1]), ((0, 8), [25, 25, 25, 25, 1]), ((1 << 20, 0), [101])]
)
def test_many_arrays_take_several_buffers_unless_their_size_is_chosen(sizes, buffers):
    jaxpr = jax.make_jaxpr(lambda leaves: sum_in_packs(leaves, *sizes), axis_env=[(AXIS, 2)])(
        [jnp.float32(i) for i in range(101)]
    )
    (call,) = jaxpr.eqns
    sums = [one for one in call.params["jaxpr"].eqns if one.primitive.name == "psum"]
    assert [operand.aval.size for one in sums for operand in one.invars] == buffers


def test_nothing_to_pack():
    assert combine_packed([], Buffers(), bytes_per_pack=8) == []
