"""Which values differ per replica, through loops, branches and every kind of communication."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from replicax._program.replication import NOTHING, VARIES, dependence

ONES = jnp.ones(3)
OWN, SHARED = frozenset({VARIES}), NOTHING


def scan_of_sums(own, shared):
    return lax.scan(lambda c, _: (c + lax.psum(own, "replica"), c), shared, None, length=2)


def scan_that_spreads(own, shared):
    """The carry starts equal and becomes different in the first round."""
    return lax.scan(lambda c, _: (c + own, lax.psum(c, "replica")), shared, None, length=2)


def loop_of_sums(own, shared):
    return lax.fori_loop(0, 3, lambda i, c: c + lax.psum(own, "replica"), shared)


def loop_of_own_length(own, shared):
    return lax.while_loop(lambda c: c[0] < lax.axis_index("replica"), lambda c: c + 1, shared)


def branch_on_shared(own, shared):
    return lax.cond(shared.sum() > 0, lambda: lax.psum(own, "replica"), lambda: shared)


def branch_on_own(own, shared):
    return lax.cond(own.sum() > 0, lambda: shared, lambda: 2 * shared)


CASES = {
    "scan_of_sums": (scan_of_sums, [SHARED, SHARED]),
    "scan_that_spreads": (scan_that_spreads, [OWN, SHARED]),
    "loop_of_sums": (loop_of_sums, [SHARED]),
    "loop_of_own_length": (loop_of_own_length, [OWN]),
    "branch_on_shared": (branch_on_shared, [SHARED]),
    "branch_on_own": (branch_on_own, [OWN]),
    "scatter": (lambda own, shared: lax.psum_scatter(shared, "replica"), [OWN]),
    "shift": (lambda own, shared: lax.ppermute(shared, "replica", [(0, 1)]), [OWN]),
    "gather": (lambda own, shared: lax.all_gather(own, "replica"), [SHARED]),
    "maximum": (lambda own, shared: lax.pmax(own, "replica"), [SHARED]),
    "through_jit": (lambda own, shared: jax.jit(lambda x: lax.psum(x, "replica"))(own), [SHARED]),
    "through_custom_jvp": (lambda own, shared: jax.nn.relu(shared), [SHARED]),
    "through_checkpoint": (
        lambda own, shared: jax.checkpoint(lambda x: lax.psum(jnp.sin(x), "replica"))(own),
        [SHARED],
    ),
    "number": (lambda own, shared: shared + lax.axis_index("replica"), [OWN]),
}


@pytest.mark.parametrize("name", CASES)
def test_labels(name):
    fn, expected = CASES[name]
    jaxpr = jax.make_jaxpr(fn, axis_env=[("replica", 3)])(ONES, ONES)
    assert dependence(jaxpr.jaxpr, [OWN, SHARED]) == expected


def test_labels_of_inputs_are_followed_to_the_outputs():
    jaxpr = jax.make_jaxpr(lambda a, b: (a + 1, a * b, jnp.zeros(3)))(ONES, ONES)
    labels = dependence(jaxpr.jaxpr, [frozenset({0}), frozenset({1})])
    assert labels == [frozenset({0}), frozenset({0, 1}), NOTHING]
