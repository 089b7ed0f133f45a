"""Losses that travel with the gradients: which do, and what they come to."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from replicax._core.packing import pack_size_of, sum_in_packs
from replicax._core.reduce import ReduceOp, reduce_value
from replicax._core.values import PerReplica
from replicax._program.bucketing import with_sums_along
from replicax._program.capture import capture

X = np.array([[1.0, 2.0], [3.0, 5.0]], np.float32)


def captured(fn):
    return capture(lambda leaves: fn(*leaves), [X[0]], axis_env=[("replica", 2)])


def step(x):
    loss = jnp.sum(x)
    (total,) = sum_in_packs([x])
    after = total[0] * 2
    return loss, x, total, after, x[0].astype(jnp.int32), loss.astype(jnp.bfloat16)


def test_numbers_that_are_known_before_the_gradients_are_summed_go_along():
    before = captured(step)
    varies = [True, True, False, False, True, True]
    found, places = with_sums_along(before, varies, 2)
    assert places == (0,)  # the others: an array, sums, an integer, a narrow number
    fn = jax.extend.core.jaxpr_as_fun(found.jaxpr)
    *outputs, total = jax.vmap(fn, axis_name="replica")(X)
    assert outputs[0].tolist() == [3.0, 8.0]
    assert outputs[2].tolist() == [[4.0, 7.0]] * 2
    assert total.tolist() == [11.0] * 2
    packs = [each for each in found.jaxpr.jaxpr.eqns if pack_size_of(each) == 0]
    assert [len(each.invars) for each in packs] == [2]  # one sum, of both


def test_where_nothing_can_go_along_the_program_stays():
    for fn, varies in [
        (lambda x: jnp.sum(x), [True]),  # no gradients
        (lambda x: jnp.sum(sum_in_packs([x])[0]), [True]),  # known too late
        (lambda x: (sum_in_packs([x])[0], 3.0 + 0 * x[0]), [False, False]),
    ]:
        before = captured(fn)
        assert with_sums_along(before, varies, 2) == (before, ())


def test_the_sum_of_a_value_is_not_that_of_what_is_made_of_it():
    value = PerReplica(jnp.array([3.0, 8.0]))
    value.total = jnp.float32(11.0)
    assert float(reduce_value(ReduceOp.SUM, value, None, 2)) == 11.0
    assert float(reduce_value(ReduceOp.MEAN, value, None, 2)) == 5.5
    squares = jax.tree.map(jnp.square, value)
    assert float(reduce_value(ReduceOp.SUM, squares, None, 2)) == 73.0
