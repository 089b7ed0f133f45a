"""Jaxprs of different shapes, evaluated together from collective to collective."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from replicax._core.errors import UnevenBatch
from replicax._core.topology import AXIS
from replicax._mesh.uneven import run_in_lockstep

ROWS = [jnp.array([1.0, 2.0]), jnp.array([3.0])]


def together(fn, inputs=ROWS):
    """The first output of `fn` on each replica, each traced alone."""
    env = [(AXIS, len(inputs))]
    programs = [jax.make_jaxpr(fn, axis_env=env)(x) for x in inputs]
    return [outputs[0] for outputs in run_in_lockstep(programs, [[x] for x in inputs])]


def replica_id():
    return lax.axis_index(AXIS)


def test_replicas_without_collectives_run_alone():
    assert [out.tolist() for out in together(lambda x: x * 2)] == [[2.0, 4.0], [6.0]]


@pytest.mark.parametrize(
    ("combine", "expected"), [(lax.psum, 6.0), (lax.pmean, 3.0), (lax.pmax, 3.0), (lax.pmin, 3.0)]
)
def test_collectives_meet(combine, expected):
    assert together(lambda x: combine(jnp.sum(x), AXIS)) == [expected, expected]


def test_a_collective_may_have_several_operands():
    def fn(x):
        total, rows = lax.psum((jnp.sum(x), jnp.sum(x * 0 + 1)), AXIS)
        return total / rows

    assert together(fn) == [2.0, 2.0]


def test_replicas_know_their_numbers():
    assert [int(n) for n in together(lambda x: replica_id())] == [0, 1]


def test_values_are_gathered_in_replica_order():
    outputs = together(lambda x: lax.all_gather(jnp.sum(x), AXIS))
    assert [out.tolist() for out in outputs] == [[3.0, 3.0]] * 2


def test_several_collectives_follow_each_other():
    def fn(x):
        mean = lax.psum(jnp.sum(x), AXIS) / lax.psum(jnp.sum(x * 0 + 1), AXIS)
        return lax.psum(jnp.sum((x - mean) ** 2), AXIS)

    assert together(fn) == [2.0, 2.0]  # (1−2)² + (2−2)² + (3−2)²


def test_collectives_meet_inside_calls():
    inner = jax.jit(lambda x: lax.psum(jnp.sum(x), AXIS) + replica_id())
    assert together(lambda x: inner(x) * 2) == [12.0, 14.0]


def test_gradients_meet_too():
    def fn(x):
        return jax.grad(lambda x: lax.psum(jnp.sum(x**2), AXIS))(x)

    # Every replica's loss is the whole sum, and there are two of them: 2 · 2x.
    assert [out.tolist() for out in together(fn)] == [[4.0, 8.0], [12.0]]


def test_loops_without_collectives_run_alone():
    def fn(x):
        return lax.fori_loop(0, 3, lambda _, total: total + jnp.sum(x), 0.0)

    assert together(fn) == [9.0, 9.0]


def test_a_loop_may_ask_for_the_number():
    def fn(x):
        return lax.fori_loop(0, 3, lambda _, total: total + replica_id() + x[0], 0.0)

    assert together(fn) == [3.0, 12.0]


def test_a_branch_may_ask_for_the_number():
    def fn(x):
        return lax.cond(x[0] > 0, lambda: 10 * replica_id(), lambda: -1)

    assert [int(out) for out in together(fn)] == [0, 10]


def test_loops_with_collectives_cannot_meet():
    def fn(x):
        return lax.fori_loop(0, 3, lambda _, total: total + lax.psum(jnp.sum(x), AXIS), 0.0)

    with pytest.raises(UnevenBatch, match=r"a collective inside `(scan|while)`"):
        together(fn)


def test_shapes_must_agree_where_replicas_meet():
    with pytest.raises(UnevenBatch, match=r"Reduce it over the batch first"):
        together(lambda x: lax.psum(x, AXIS))


def test_replicas_must_meet_equally_often():
    def fn(x):
        total = lax.psum(jnp.sum(x), AXIS)
        return lax.psum(total, AXIS) if x.shape[0] > 1 else total

    with pytest.raises(UnevenBatch, match="All replicas must combine values of one shape"):
        together(fn)


def test_replicas_must_meet_in_the_same_collective():
    def fn(x):
        combine = lax.psum if x.shape[0] > 1 else lax.pmax
        return combine(jnp.sum(x), AXIS)

    with pytest.raises(UnevenBatch, match="Received: pmax and psum of shapes"):
        together(fn)


def test_it_can_be_compiled():
    env = [(AXIS, 2)]

    def fn(x):
        return lax.psum(jnp.sum(x), AXIS) * x

    programs = [jax.make_jaxpr(fn, axis_env=env)(x) for x in ROWS]
    run = jax.jit(lambda *rows: run_in_lockstep(programs, [[x] for x in rows]))
    np.testing.assert_allclose(run(*ROWS)[1][0], [18.0])


def test_constants_of_a_program_are_used():
    offset = jnp.arange(2.0)
    assert together(lambda x: lax.psum(jnp.sum(offset) + jnp.sum(x), AXIS)) == [8.0, 8.0]
