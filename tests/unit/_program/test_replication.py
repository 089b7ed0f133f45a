"""Which outputs of a program differ between replicas, and which inputs they are made of."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax

from replicax._core.topology import AXIS
from replicax._program.jaxpr import inner_jaxpr
from replicax._program.replication import (
    VARYING,
    has_collective,
    is_collective,
    propagate_labels,
    uses_replica_id,
)

DIFFERS, SAME = frozenset({VARYING}), frozenset()
X = jnp.ones(4)


def labels(fn, *inputs, x=X):
    """The labels of the outputs of `fn`, for inputs with these labels."""
    return propagate_labels(jax.make_jaxpr(fn, axis_env=[(AXIS, 2)])(*[x] * len(inputs)), inputs)


def varies(fn, *inputs, x=X):
    return [VARYING in one for one in labels(fn, *inputs, x=x)]


def replica_id():
    return lax.axis_index(AXIS)


def a_branch_that_forgets_to_combine(flag, x):
    return lax.cond(flag[0] > 0, lambda: lax.psum(x, AXIS), lambda: x)


def a_carry_round(x):
    # The first carry takes up x in the first round, the second takes up the first in the next.
    def body(carry, _):
        first, second, third = carry
        return (first + x, second + first, third), second

    carry, seen = lax.scan(body, (jnp.zeros(4), jnp.zeros(4), jnp.zeros(4)), None, length=3)
    return *carry, seen


def a_carry_that_spreads(own, shared):
    """The carry starts equal and becomes different in the first round."""
    return lax.scan(lambda c, _: (c + own, lax.psum(c, AXIS)), shared, None, length=2)


def a_loop_of_sums(x):
    return lax.fori_loop(0, 3, lambda _, total: total + lax.psum(x, AXIS), jnp.zeros(4))


def a_loop_of_this_length(limit):
    return lax.while_loop(lambda n: n < limit[0], lambda n: n + 1, 0.0)


def a_loop_of_own_length(x):
    return lax.while_loop(lambda c: c[0] < replica_id(), lambda c: c + 1, x)


def a_loop_that_carries(x, steps):
    def body(carry):
        n, first, second = carry
        return n + 1, first + x, second + first

    start = (0.0, jnp.zeros(4), jnp.zeros(4))
    return lax.while_loop(lambda carry: carry[0] < steps[0], body, start)


@jax.custom_jvp
def total(x):
    return lax.psum(x, AXIS)


total.defjvp(lambda primals, tangents: (total(*primals), tangents[0]))


@jax.custom_vjp
def also(x):
    return lax.psum(x, AXIS)


also.defvjp(lambda x: (also(x), None), lambda _, g: (g,))


def pair(x, y):
    return lax.psum(x, AXIS), y + replica_id()


CASES = {
    "nothing": (lambda: jnp.ones(3), [], [False]),
    "an input": (lambda x, y: (x + y, y), [DIFFERS, SAME], [True, False]),
    "the number": (replica_id, [], [True]),
    "jit": (jax.jit(pair), [DIFFERS, SAME], [False, True]),
    "checkpoint": (jax.checkpoint(pair), [DIFFERS, SAME], [False, True]),
    "own derivatives": (lambda x: (total(x), also(x)), [DIFFERS], [False, False]),
    "a gradient": (jax.grad(lambda x: jnp.sum(lax.psum(x, AXIS) ** 2)), [DIFFERS], [False]),
    "a branch taken by all": (
        lambda flag, x: lax.cond(flag[0] > 0, lambda: lax.psum(x, AXIS), lambda: jnp.zeros(4)),
        [SAME, DIFFERS],
        [False],
    ),
    "a branch that forgets": (a_branch_that_forgets_to_combine, [SAME, DIFFERS], [True]),
    "an own choice": (
        lambda flag: lax.cond(flag[0] > 0, lambda: 1.0, lambda: 2.0), [DIFFERS], [True],
    ),
    "the number in a branch": (
        lambda flag: lax.cond(flag[0] > 0, lambda: replica_id(), lambda: 0), [SAME], [True],
    ),
    "a scan over what varies": (
        lambda x, y: lax.scan(lambda c, row: (c, row + 1), y[0], x), [DIFFERS, SAME], [False, True],
    ),
    "a scan": (a_carry_round, [DIFFERS], [True, True, False, True]),
    "a scan that spreads": (a_carry_that_spreads, [DIFFERS, SAME], [True, False]),
    "a loop of sums": (a_loop_of_sums, [DIFFERS], [False]),
    "a loop of own length": (a_loop_of_this_length, [DIFFERS], [True]),
    "a loop of one length": (a_loop_of_this_length, [SAME], [False]),
    "a loop of the number's length": (a_loop_of_own_length, [SAME], [True]),
    "a loop that carries": (a_loop_that_carries, [DIFFERS, SAME], [False, True, True]),
}  # fmt: skip


@pytest.mark.parametrize(("fn", "given", "expected"), CASES.values(), ids=CASES)
def test_which_outputs_vary(fn, given, expected):
    assert varies(fn, *given) == expected


def test_labels_are_those_of_everything_a_value_is_made_from():
    a, b = frozenset({"a"}), frozenset({"b"})
    assert labels(lambda x, y: (x + y, 2 * x, jnp.zeros(3)), a, b) == [a | b, a, SAME]


def test_a_number_on_another_axis_is_none_of_ours():
    jaxpr = jax.make_jaxpr(lambda: lax.axis_index("model"), axis_env=[("model", 2)])()
    assert propagate_labels(jaxpr, []) == [SAME]


@pytest.mark.parametrize("combine", [lax.psum, lax.pmax, lax.pmin, lax.pmean, lax.all_gather])
def test_what_is_combined_is_the_same(combine):
    assert varies(lambda x: combine(x, AXIS), DIFFERS) == [False]


def test_what_was_combined_keeps_its_other_labels():
    both = frozenset({VARYING, "old"})
    assert labels(lambda x: lax.psum(x, AXIS), both) == [frozenset({"old"})]


@pytest.mark.parametrize(
    "deal",
    [
        lambda x: lax.psum_scatter(x, AXIS, tiled=True),
        lambda x: lax.all_to_all(x, AXIS, 0, 0, tiled=True),
        lambda x: lax.ppermute(x, AXIS, [(0, 1)]),
        lambda x: lax.psum(x, AXIS, axis_index_groups=[[0], [1]]),
    ],
    ids=["psum_scatter", "all_to_all", "ppermute", "groups"],
)
@pytest.mark.parametrize("given", [SAME, DIFFERS])
def test_what_is_dealt_out_varies(deal, given):
    assert varies(deal, given) == [True]


def test_combining_over_another_axis_combines_no_replicas():
    jaxpr = jax.make_jaxpr(lambda x: lax.psum(x, "model"), axis_env=[(AXIS, 2), ("model", 2)])(X)
    assert propagate_labels(jaxpr, [DIFFERS]) == [DIFFERS]


def equation_of(fn, *args):
    jaxpr = jax.make_jaxpr(fn, axis_env=[(AXIS, 2)])(*args)
    return jaxpr.jaxpr, jaxpr.jaxpr.eqns[-1]


def test_collectives_are_recognised_inside_loops():
    jaxpr, equation = equation_of(a_loop_of_sums, X)
    assert has_collective(jaxpr)
    assert not is_collective(equation)
    assert not uses_replica_id(jaxpr)


def test_the_number_is_recognised_inside_calls():
    jaxpr, _ = equation_of(jax.jit(lambda x: x + replica_id()), X)
    assert uses_replica_id(jaxpr)
    assert not has_collective(jaxpr)


def test_asking_for_the_number_is_a_meeting_point_too():
    _, equation = equation_of(replica_id)
    assert is_collective(equation)


def test_a_call_is_opened_and_a_sum_is_not():
    _, call = equation_of(jax.jit(lambda x: x + 1), X)
    assert len(inner_jaxpr(call).jaxpr.eqns) == 1
    _, addition = equation_of(lambda x: x + 1, X)
    assert inner_jaxpr(addition) is None
