"""The program of a batch that the replicas do not divide."""

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from jax import lax

from replicax._core.errors import UnevenBatch, VariableNotReduced
from replicax._core.reduce import sum_leaves
from replicax._core.topology import AXIS, Topology
from replicax._mesh.engine import put_pieces
from replicax._mesh.uneven import build_uneven, fingerprints, run_in_lockstep, same_outputs
from replicax._program.program import rebuilt

TWO = Topology.local(["CPU:0", "CPU:1"])
ROWS = put_pieces(TWO, [np.array([1.0, 2.0]), np.array([3.0])])


def built(fn):
    """Build the program of `fn(group, x)`, and run it without variables."""
    captured, varies, body = build_uneven(
        lambda group, leaves: fn(group, leaves[0]), [ROWS], TWO, sum_leaves
    )
    values = [variable.value for variable in captured.variables]
    outputs, news = body(values, [ROWS])
    return rebuilt(captured.tree, captured.outputs, outputs), varies, news


def test_what_no_shape_decides_is_the_same():
    def fn(group, x):
        return jnp.zeros(2), lax.fori_loop(0, 3, lambda _, n: n + 1, 0), jnp.array([1.0, 2.0])

    assert built(fn)[1] == (False, False, False)


def test_gathered_sizes_must_settle():
    def fn(group, x):
        for _ in range(9):
            x = jnp.zeros(group.all_gather(x, 0).shape[0] ** 2 % 11 + 1)
        return x

    with pytest.raises(UnevenBatch, match="changed in each of 8 traces"):
        built(fn)


def test_replicas_must_write_the_same_variables():
    variable = keras.Variable(0.0, aggregation="sum")

    def fn(group, x):
        if x.shape[0] > 1:
            variable.assign_add(1.0)

    with pytest.raises(UnevenBatch, match="Return and write the same on every replica"):
        built(fn)


@pytest.mark.parametrize(
    ("aggregation", "expected"), [("sum", 3.0), ("mean", 1.5), ("only_first_replica", 2.0)]
)
def test_writes_that_only_shapes_decide_are_aggregated(aggregation, expected):
    variable = keras.Variable(0.0, aggregation=aggregation)
    _, _, (new,) = built(lambda group, x: variable.assign(1.0 * x.shape[0]))
    assert float(new) == expected


def test_writes_that_only_shapes_decide_need_an_aggregation():
    variable = keras.Variable(0.0)
    with pytest.raises(VariableNotReduced, match="different values"):
        built(lambda group, x: variable.assign(1.0 * x.shape[0]))


INPUTS = [jnp.array([1.0, 2.0]), jnp.array([3.0])]


def together(fn, inputs=INPUTS):
    """The first output of `fn` on each replica, each traced alone."""
    env = [(AXIS, len(inputs))]
    programs = [jax.make_jaxpr(fn, axis_env=env)(x) for x in inputs]
    return [outputs[0] for outputs in run_in_lockstep(programs, [[x] for x in inputs])]


def replica_id():
    return lax.axis_index(AXIS)


OFFSET = jnp.arange(2.0)
SUMS = jax.jit(lambda x: lax.psum(jnp.sum(x), AXIS) + replica_id())
MEETINGS = {
    "psum": (lambda x: lax.psum(jnp.sum(x), AXIS), [6.0, 6.0]),
    "pmean": (lambda x: lax.pmean(jnp.sum(x), AXIS), [3.0, 3.0]),
    "pmax": (lambda x: lax.pmax(jnp.sum(x), AXIS), [3.0, 3.0]),
    "pmin": (lambda x: lax.pmin(jnp.sum(x), AXIS), [3.0, 3.0]),
    "operands": (
        lambda x: jnp.divide(*lax.psum((jnp.sum(x), jnp.sum(x * 0 + 1)), AXIS)),
        [2.0, 2.0],
    ),
    "call": (lambda x: SUMS(x) * 2, [12.0, 14.0]),
    "loop": (lambda x: lax.fori_loop(0, 3, lambda _, y: y + jnp.sum(x), 0.0), [9.0, 9.0]),
    "number in a loop": (
        lambda x: lax.fori_loop(0, 3, lambda _, y: y + replica_id() + x[0], 0.0),
        [3.0, 12.0],
    ),
    "number in a branch": (
        lambda x: lax.cond(x[0] > 0, lambda: 10 * replica_id(), lambda: -1),
        [0, 10],
    ),
    "constant": (lambda x: lax.psum(jnp.sum(OFFSET) + jnp.sum(x), AXIS), [8.0, 8.0]),
}


@pytest.mark.parametrize(("fn", "expected"), MEETINGS.values(), ids=MEETINGS)
def test_replicas_meet(fn, expected):
    assert together(fn) == expected


def test_loops_with_collectives_cannot_meet():
    def fn(x):
        return lax.fori_loop(0, 3, lambda _, total: total + lax.psum(jnp.sum(x), AXIS), 0.0)

    with pytest.raises(UnevenBatch, match=r"inside `(scan|while)`"):
        together(fn)


def test_shapes_must_agree_where_replicas_meet():
    with pytest.raises(UnevenBatch, match=r"Reduce a value over the batch first"):
        together(lambda x: lax.psum(x, AXIS))


def test_replicas_must_meet_equally_often():
    def fn(x):
        total = lax.psum(jnp.sum(x), AXIS)
        return lax.psum(total, AXIS) if x.shape[0] > 1 else total

    with pytest.raises(UnevenBatch, match="all_gather"):
        together(fn)


def test_replicas_must_meet_in_the_same_collective():
    def fn(x):
        combine = lax.psum if x.shape[0] > 1 else lax.pmax
        return combine(jnp.sum(x), AXIS)

    with pytest.raises(UnevenBatch, match="pmax and psum of shapes"):
        together(fn)


LONG, SHORT = jnp.ones(5), jnp.ones(4)


def same(fn, *rows):
    env = [(AXIS, 2)]
    return same_outputs([jax.make_jaxpr(fn, axis_env=env)(x) for x in rows or (LONG, SHORT)])


MADE_ALIKE = {
    "constant": lambda x: jnp.zeros(3) + 1,
    "collective": lambda x: lax.psum(jnp.sum(x), AXIS),
    "after": lambda x: lax.psum(jnp.sum(x), AXIS) * 2,
    "loop": lambda x: lax.fori_loop(0, 3, lambda _, n: n + 1, 0),
    "numpy": lambda x: jnp.asarray(np.array([1.0, 2.0])) * 2,
    "jax": lambda x: jnp.array([1.0, 2.0]) * 2,
    "large": lambda x: jnp.asarray(np.arange(512.0, dtype="float32")) * 2,
    "call": lambda x: jax.jit(jnp.sin)(jnp.zeros(3)),
    "operations before a collective": lambda x: lax.psum(sum(x[i] for i in range(len(x))), AXIS),
    "collective in a call": lambda x: jax.jit(lambda y: lax.psum(y, AXIS))(
        sum(x[i] for i in range(len(x)))
    ),
}


@pytest.mark.parametrize("fn", MADE_ALIKE.values(), ids=MADE_ALIKE)
def test_what_is_made_in_the_same_way_is_the_same(fn):
    assert same(fn) == [True]


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: jnp.float32(x.shape[0]) * 2,
        lambda x: jnp.ones_like(x).sum(),
        lambda x: lax.fori_loop(0, x.shape[0], lambda _, n: n + 1, 0),
        lambda x: jnp.asarray(np.arange(3.0) * x.shape[0]) + 1,
    ],
    ids=["literal", "shape", "loop", "constant"],
)
def test_what_a_shape_decides_differs(fn):
    assert same(fn) == [False]


def test_each_output_is_answered_for():
    def fn(x):
        return jnp.zeros(2), jnp.ones_like(x).sum(), lax.psum(x.sum(), AXIS)

    assert same(fn) == [True, False, True]


def test_data_is_none_of_its_business():
    # What differs because its input does is found by replication.py.
    assert same(lambda x: x.sum()) == [True]


def test_replicas_of_one_shape_are_all_the_same():
    assert same(lambda x: (x.sum(), jnp.float32(x.shape[0])), LONG, LONG) == [True, True]


def test_inputs_and_outputs_are_told_apart():
    prints = fingerprints(jax.make_jaxpr(lambda x, y: (x, y, x + y, y + x))(1.0, 2.0))
    assert len(set(prints)) == 4


def test_results_of_one_operation_are_told_apart():
    def halves(x):
        return jnp.split(lax.psum(x[:4], AXIS), 2)

    (program,) = [jax.make_jaxpr(halves, axis_env=[(AXIS, 2)])(LONG)]
    assert len(set(fingerprints(program))) == 2
