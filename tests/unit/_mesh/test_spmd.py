"""A replica function becomes a program: which outputs vary, how writes settle, what is donated."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from jax import lax

from replicax._core.errors import UsageError, VariableNotReduced
from replicax._core.reduce import sum_leaves
from replicax._core.topology import Topology
from replicax._mesh.engine import put_pieces
from replicax._mesh.spmd import build, stack_of
from replicax._mesh.store import DeviceStore, anywhere
from replicax._program.program import rebuilt

ONE, TWO = Topology.single("CPU:0"), Topology.local(["CPU:0", "CPU:1"])
EVEN = put_pieces(TWO, [np.array([1.0, 2.0]), np.array([3.0, 4.0])])
UNEVEN = put_pieces(TWO, [np.array([1.0, 2.0]), np.array([3.0])])


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


@pytest.mark.parametrize("value", [EVEN, UNEVEN], ids=["even", "uneven"])
def test_outputs_that_differ_are_found(value):
    def fn(group, leaves):
        (x,) = leaves
        return jnp.sum(x), lax.psum(jnp.sum(x), "replica"), jnp.ones(2), 7

    built = program(fn, [value])
    assert built.varies == (True, False, False)
    outputs, _ = executed(built, [value])
    total = sum(float(part.sum()) for part in value.components)
    assert float(outputs[1]) == total
    assert outputs[2].tolist() == [1.0, 1.0]
    assert rebuilt(built.captured.tree, built.captured.outputs, [1, 2, 3]) == (1, 2, 3, 7)


def test_shared_arrays_are_whole_on_every_replica():
    def fn(group, leaves):
        x, shared = leaves
        return x + shared, shared * 2

    built = program(fn, [EVEN, np.array([10.0, 20.0])])
    assert built.varies == (True, False)
    (outputs, _) = executed(built, [EVEN, np.array([10.0, 20.0])])
    assert outputs[0].tolist() == [[11.0, 22.0], [13.0, 24.0]]
    assert outputs[1].tolist() == [20.0, 40.0]


def test_one_replica_is_a_plain_function():
    built = program(lambda group, leaves: leaves[0] + group.replica_id(), [np.ones(2)], ONE)
    outputs, _ = executed(built, [np.ones(2)])
    assert outputs[0].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("value", [EVEN, UNEVEN], ids=["even", "uneven"])
@pytest.mark.parametrize(("aggregation", "expected"), [("sum", 110.0), ("mean", 105.0)])
def test_writes_are_settled_in_the_program(value, aggregation, expected):
    # Sums 3 and 7, or 3 and 3: their halves are added to 100.
    variable = keras.Variable(100.0, aggregation=aggregation)

    def fn(group, leaves):
        variable.assign_add(jnp.sum(leaves[0]))

    built = program(fn, [value])
    assert built.captured.variables == (variable,)
    assert built.captured.written == (0,)
    _, (new,) = executed(built, [value], values=[variable.value])
    total = sum(float(part.sum()) for part in value.components)
    assert float(new) == (100.0 + total if aggregation == "sum" else 100.0 + total / 2)


def test_what_uneven_shapes_decide_differs():
    # No array enters these numbers, but each replica's program has its own.
    def fn(group, leaves):
        (x,) = leaves
        total = lax.psum(jnp.ones_like(x).sum(), "replica")
        return jnp.ones_like(x).sum(), jnp.float32(x.shape[0]), total, jnp.zeros(2)

    built = program(fn, [UNEVEN])
    assert built.varies == (True, True, False, False)


@pytest.mark.parametrize("value", [EVEN, UNEVEN], ids=["even", "uneven"])
def test_a_write_without_aggregation_is_refused(value):
    variable = keras.Variable(0.0, name="bad")
    with pytest.raises(VariableNotReduced, match="variable 'bad'"):
        program(lambda group, leaves: variable.assign(jnp.sum(leaves[0])), [value])


def test_read_and_written_variables_are_told_apart():
    read, written = keras.Variable(2.0), keras.Variable(3.0)

    def fn(group, leaves):
        written.assign(read * 10)

    built = program(fn)
    assert {v.path for v in built.captured.variables} == {read.path, written.path}
    (position,) = built.captured.written
    assert built.captured.variables[position] is written
    others = [v.value for v in built.captured.variables if v is not written]
    _, (new,) = executed(built, values=[written.value], others=others)
    assert float(new) == 20.0


def test_written_values_are_donated_when_asked():
    variable = keras.Variable(np.zeros(1000, "float32"))

    def fn(group, leaves):
        variable.assign(variable + 1.0)

    for donate in (False, True):
        value = jnp.zeros(1000)
        executed(program(fn, topology=ONE, donate=donate), values=[value])
        assert value.is_deleted() is donate


def test_compiler_options_are_passed_on():
    built = program(lambda group, leaves: jnp.ones(1), compiler_options={"no_such_option": True})
    with pytest.raises(Exception, match="no_such_option"):
        executed(built)


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


def test_a_program_can_be_part_of_another():
    built = program(lambda group, leaves: jnp.sum(leaves[0]), [EVEN])

    @jax.jit
    def outer(stacked):
        outputs, _, _ = built.program.compiled([], [], [stacked])
        return jnp.sum(outputs[0])

    assert float(outer(EVEN.stacked)) == 10.0
