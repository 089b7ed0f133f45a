"""A replica function becomes a program: varying outputs, aggregated writes, donated arrays."""

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from jax import lax

from replicax._core.errors import UsageError
from replicax._core.reduce import sum_leaves
from replicax._core.topology import Topology
from replicax._mesh.engine import put_pieces
from replicax._mesh.spmd import build, stack_of
from replicax._mesh.store import DeviceStore, anywhere

ONE, TWO = Topology.single("CPU:0"), Topology.local(["CPU:0", "CPU:1"])
EVEN = put_pieces(TWO, [np.array([1.0, 2.0]), np.array([3.0, 4.0])])


def program(fn, arrays=(), topology=TWO, **options):
    return build(
        fn,
        list(arrays),
        topology,
        sum_leaves,
        **{"store": DeviceStore(anywhere(), topology), "donate": False, **options},
    )


def executed(built, arrays=(), values=(), others=()):
    given = [stack_of(array) for array in arrays]
    outputs, news, token = built.program.compiled(list(values), list(others), given)
    assert token.shape == ()
    return outputs, news


def test_written_values_are_donated_when_asked():
    variable = keras.Variable(np.zeros(1000, "float32"))

    def fn(group, leaves):
        variable.assign(variable + 1.0)

    for donate in (False, True):
        value = jnp.zeros(1000)
        executed(program(fn, topology=ONE, donate=donate), values=[value])
        assert value.is_deleted() is donate


@pytest.mark.parametrize("kind", ["branch", "loop"])
def test_a_collective_that_not_all_replicas_reach_is_an_error(kind):
    # Pair 76: in tf.distribute, "Some replicas made a different number of merge_call() calls".
    # XLA would wait for the missing replica, then end the process.
    def fn(group, leaves):
        def total():
            return lax.psum(jnp.float32(1.0), "replica")

        first = group.replica_id() == 0
        if kind == "branch":
            return lax.cond(first, total, lambda: jnp.float32(0.0))
        limit = jnp.where(first, 1, 2)
        return lax.while_loop(
            lambda s: s[0] < limit, lambda s: (s[0] + 1, s[1] + total()), (0, 0.0)
        )

    with pytest.raises(UsageError, match="condition differs per replica"):
        program(fn)


@pytest.mark.parametrize("kind", ["constant", "constant of a loop", "argument", "variable"])
def test_an_array_without_elements_is_read(kind):
    # XLA ends the process where a `shard_map` reads one (JAX 0.11.2).
    empty = jnp.zeros((0, 2))
    variable = keras.Variable(empty, aggregation="mean")

    def fn(group, leaves):
        share, given = leaves
        if kind == "argument":
            return jnp.sum(given * share) + share
        if kind == "constant of a loop":
            return lax.fori_loop(0, 3, lambda _, total: jnp.sum(empty * total) + total, share)
        if kind == "constant":
            return jnp.sum(empty * share) + share
        variable.assign(variable * share)
        return jnp.sum(variable.value) + share

    arrays = [EVEN, empty]
    values = [empty] if kind == "variable" else []
    (output,), news = executed(program(fn, arrays), arrays, values)
    assert output.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert [new.shape for new in news] == [(0, 2)] * len(values)


def test_a_program_can_be_part_of_another():
    built = program(lambda group, leaves: jnp.sum(leaves[0]), [EVEN])

    @jax.jit
    def outer(stacked):
        outputs, _, _ = built.program.compiled([], [], [stacked])
        return jnp.sum(outputs[0])

    assert float(outer(EVEN.stacked)) == 10.0
