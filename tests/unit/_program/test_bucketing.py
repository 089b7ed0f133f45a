"""Sums over rows travel in few all-reduces, and so do the numbers that replicas return."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from replicax._core.packing import pack_sizes, sum_in_packs
from replicax._core.reduce import ReduceOp, reduce_value
from replicax._core.topology import AXIS, Topology
from replicax._core.values import PerReplica
from replicax._program.bucketing import bucket_all_reduces, bucket_outputs
from replicax._program.capture import capture

from helpers import assert_trees_close

ROWS = 8


def numbers(*shape):
    return np.random.default_rng(0).normal(size=shape).astype("float32")


def dense(w, batch):
    def loss(w):
        hidden = jax.nn.relu(batch["x"] @ w["k"] + w["b"])
        return jnp.mean((hidden @ w["o"] - batch["y"]) ** 2)

    value, gradients = jax.value_and_grad(loss)(w)
    return value, jax.tree.map(lambda one, g: one - g, w, gradients), batch["x"].sum(0)


def convolved(w, batch):
    def loss(w):
        image = batch["x"].reshape(-1, 4, 4, 2)
        layout = ("NHWC", "HWIO", "NHWC")
        out = lax.conv_general_dilated(image, w["c"], (1, 1), "SAME", dimension_numbers=layout)
        return (jnp.transpose(out, (1, 0, 2, 3)).max((0, 2)) @ w["d"]).sum()

    return jax.grad(loss)(w)


def normalized(w, batch):
    """Rows that need the sums of all rows, twice, as in BatchNormalization."""

    def loss(w):
        x = batch["x"] @ w["k"]
        x = (x - x.mean(0)) / jnp.sqrt(x.var(0) + 1)
        return (x * batch["y"][:, :1]).sum(), x.max()

    return jax.grad(loss, has_aux=True)(w)


def embedded(w, batch):
    def loss(w):
        found = jnp.take(w["e"], jnp.abs(batch["x"] * 3).astype("int32"), axis=0)  # [rows, 32, 4]
        return jnp.einsum("rij,rik->rjk", found, found * w["s"]).sum() + w["e"].sum()

    return jax.grad(loss)(w)


def without_rows(w, batch):
    """What has no rows, or loses them: nothing may be divided."""
    half = jnp.concatenate([batch["x"][:3], batch["x"][5:]])
    return w["b"].sum() + jnp.arange(ROWS).sum(), half.sum(0), lax.cumsum(batch["y"])[2:5].sum(0)


def branching(w, batch):
    """Sums inside a loop and a branch stay there."""
    total, _ = lax.scan(lambda carry, x: (carry + x.sum(), None), 0.0, batch["x"])
    return lax.cond(total > 0, lambda: batch["y"].sum(), lambda: -batch["y"].sum()), total


WEIGHTS = {
    "k": numbers(32, 6),
    "b": numbers(6),
    "o": numbers(6, 3),
    "c": numbers(3, 3, 2, 5),
    "d": numbers(5, 3),
    "e": numbers(20, 4),
    "s": numbers(4),
}


def all_reduces(jaxpr):
    """How many sums are taken together, time after time."""
    found = []
    for equation in jaxpr.eqns:
        for inner in jax.extend.core.jaxprs_in_params(equation.params):
            names = [one.primitive.name for one in inner.eqns]
            is_map = equation.primitive.name == "shard_map"
            found += [names.count("psum")] if is_map else all_reduces(inner)
    return found


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (dense, [5]),  # a loss, three gradients, and the sum of x, which need nobody
        (convolved, [3]),  # what is differentiated is a sum, too
        (normalized, None),
        (embedded, [3]),
        (without_rows, []),
        (branching, []),
    ],
)
def test_results_are_those_of_one_device(step, expected):
    topology = Topology.local(["CPU:0", "CPU:1"])
    together = bucket_all_reduces(step, topology.mesh, lambda parts: lax.psum(parts, AXIS))
    batch = {"x": numbers(ROWS, 32), "y": numbers(ROWS, 3)}
    compiled = jax.jit(
        together,
        in_shardings=(topology.replicated, topology.split),
        out_shardings=topology.replicated,
    )
    found = all_reduces(compiled.trace(WEIGHTS, batch).jaxpr.jaxpr)
    if expected is None:  # some need others
        assert 1 < len(found) < sum(found)
    else:
        assert found == expected
    assert_trees_close(compiled(WEIGHTS, batch), step(WEIGHTS, batch), rtol=1e-5, atol=1e-5)


def test_what_is_rematerialized_stays_so():
    def checkpointed(w, batch):
        loss = jax.checkpoint(lambda w: (jnp.sin(batch["x"] @ w["k"]) ** 2).sum())
        return jax.grad(loss)(w)

    def names(jaxpr):
        inner = [one for e in jaxpr.eqns for one in jax.extend.core.jaxprs_in_params(e.params)]
        return {e.primitive.name for e in jaxpr.eqns}.union(*map(names, inner))

    topology = Topology.local(["CPU:0", "CPU:1"])
    together = bucket_all_reduces(checkpointed, topology.mesh, lambda parts: lax.psum(parts, AXIS))
    batch = {"x": numbers(ROWS, 32)}
    assert names(jax.make_jaxpr(together)(WEIGHTS, batch).jaxpr) & {"remat2", "checkpoint"}


def test_rows_that_the_replicas_do_not_divide_are_left_to_xla():
    topology = Topology.local(["CPU:0", "CPU:1"])
    together = bucket_all_reduces(dense, topology.mesh, lambda parts: lax.psum(parts, AXIS))
    batch = {"x": numbers(5, 32), "y": numbers(5, 3)}
    compiled = jax.jit(together)
    assert all_reduces(compiled.trace(WEIGHTS, batch).jaxpr.jaxpr) == []
    assert_trees_close(compiled(WEIGHTS, batch), dense(WEIGHTS, batch))


def test_what_a_sum_is_added_to_counts_once():
    topology = Topology.local(["CPU:0", "CPU:1"])

    def step(total, batch):
        return total.at[batch["i"]].add(batch["x"])

    together = bucket_all_reduces(step, topology.mesh, lambda parts: lax.psum(parts, AXIS))
    batch = {"i": np.array([0, 1, 1, 2]), "x": np.ones((4, 2), "float32")}
    total = np.array([[10, -np.inf], [10, 10], [np.inf, 10]], "float32")
    found = jax.jit(together)(total, batch)
    assert found.tolist() == [[11, -np.inf], [12, 12], [np.inf, 11]]


def test_operations_with_effects_keep_their_order():
    topology = Topology.local(["CPU:0", "CPU:1"])

    def step(weight, batch):
        jax.debug.print("{}", weight, ordered=False)
        return weight * batch["x"].sum()

    together = bucket_all_reduces(step, topology.mesh, lambda parts: lax.psum(parts, AXIS))
    traced = jax.jit(together).trace(np.float32(1), {"x": numbers(ROWS, 2)})
    assert all_reduces(traced.jaxpr.jaxpr) == []


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
    found, places = bucket_outputs(before, varies, 2)
    assert places == (0,)  # the others: an array, sums, an integer, a narrow number
    fn = jax.extend.core.jaxpr_as_fun(found.jaxpr)
    *outputs, total = jax.vmap(fn, axis_name="replica")(X)
    assert outputs[0].tolist() == [3.0, 8.0]
    assert outputs[2].tolist() == [[4.0, 7.0]] * 2
    assert total.tolist() == [11.0] * 2
    packs = [each for each in found.jaxpr.jaxpr.eqns if pack_sizes(each) == (0, 0)]
    assert [len(each.invars) for each in packs] == [2]  # one sum, of both


def test_where_nothing_can_go_along_the_program_stays():
    for fn, varies in [
        (lambda x: jnp.sum(x), [True]),  # no gradients
        (lambda x: jnp.sum(sum_in_packs([x])[0]), [True]),  # known too late
        (lambda x: (sum_in_packs([x])[0], 3.0 + 0 * x[0]), [False, False]),
    ]:
        before = captured(fn)
        assert bucket_outputs(before, varies, 2) == (before, ())


def test_the_sum_of_a_value_is_not_that_of_what_is_made_of_it():
    value = PerReplica(jnp.array([3.0, 8.0]))
    value.total = jnp.float32(11.0)
    assert float(reduce_value(value, ReduceOp.SUM, None, 2)) == 11.0
    assert float(reduce_value(value, ReduceOp.MEAN, None, 2)) == 5.5
    squares = jax.tree.map(jnp.square, value)
    assert float(reduce_value(squares, ReduceOp.SUM, None, 2)) == 73.0
