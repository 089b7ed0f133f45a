"""Whether replicas of different shapes compute the same thing."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from replicax._core.topology import AXIS
from replicax._mesh.uneven import fingerprints, same_outputs

LONG, SHORT = jnp.ones(5), jnp.ones(4)


def same(fn, *rows):
    env = [(AXIS, 2)]
    return same_outputs([jax.make_jaxpr(fn, axis_env=env)(x) for x in rows or (LONG, SHORT)])


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: jnp.zeros(3) + 1,
        lambda x: lax.psum(jnp.sum(x), AXIS),
        lambda x: lax.psum(jnp.sum(x), AXIS) * 2,
        lambda x: lax.fori_loop(0, 3, lambda _, n: n + 1, 0),
        lambda x: jnp.asarray(np.array([1.0, 2.0])) * 2,
        lambda x: jnp.array([1.0, 2.0]) * 2,
        lambda x: jnp.asarray(np.arange(512.0, dtype="float32")) * 2,
        lambda x: jax.jit(jnp.sin)(jnp.zeros(3)),
    ],
    ids=["constant", "collective", "after", "loop", "numpy", "jax", "large", "call"],
)
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
    # What differs because its input does is found by dependence.py.
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
