"""What of a program is left to do when the sums over a batch are known, and on what that works."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from replicax._core.topology import AXIS, Topology
from replicax._program.central import Operations, computed, computed_once, parted

TWO = Topology.local(["CPU:1", "CPU:2"])
X = np.arange(6, dtype="float32").reshape(2, 3)


def parts_of(fn, *args, rows):
    """The operations of `fn`, and its two parts: its first result is given back, the rest kept."""
    operations = Operations(jax.make_jaxpr(fn)(*args), rows)
    return operations, *parted(operations, operations.outputs[:1])


def names(part):
    return [o.equation.primitive.name for o in part if o.equation is not None]


def run(operations, first, second, args):
    """Both parts, one after the other."""
    given = dict(zip(operations.inputs, args, strict=True))
    made = {key for o in first for key in o.results}
    between = [key for o in second for key in o.operands if key in made]
    wanted = [*operations.outputs[:1], *between]
    found = computed(first, operations.constants, given, wanted)
    given.update(zip(wanted, found, strict=True))
    news = computed_once(second, operations.constants, given, operations.outputs[1:])
    return [found[0], *news]


def a_step(x, weight, momentum):
    gradient = (x * weight).sum(axis=0)
    momentum = momentum * 0.5 + gradient
    return (x * weight).max(), weight - momentum, momentum


def test_an_update_is_left_to_the_second_part():
    weight, momentum = np.ones(3, "float32"), np.full(3, 2.0, "float32")
    operations, first, second = parts_of(a_step, X, weight, momentum, rows=[0, None, None])
    assert "reduce_sum" in names(first)
    assert names(second) == ["mul", "add", "sub"]
    largest, new, kept = run(operations, first, second, [X, weight, momentum])
    # The columns of x have the sums 3, 5 and 7.
    assert (float(largest), kept.tolist(), new.tolist()) == (5.0, [4, 6, 8], [-3, -5, -7])


def test_a_map_over_the_replicas_is_parted_behind_its_sum():
    def replica(x, weight, momentum):
        gradient = lax.psum((x * weight).sum(axis=0), AXIS)
        momentum = momentum * 0.5 + gradient
        return x + weight, weight - momentum, momentum

    specs = {"in_specs": (P(AXIS), P(), P()), "out_specs": (P(AXIS), P(), P())}
    step = jax.jit(jax.shard_map(replica, mesh=TWO.mesh, check_vma=False, **specs))
    weight, momentum = np.ones(3, "float32"), np.full(3, 2.0, "float32")
    args = [jax.device_put(X, TWO.split), *jax.device_put((weight, momentum), TWO.replicated)]
    operations, first, second = parts_of(step, *args, rows=[0, None, None])
    assert names(second) == ["mul", "add", "sub"]
    found = jax.jit(lambda *args: run(operations, first, second, args))(*args)
    assert [value.tolist() for value in found] == [(X + 1).tolist(), [-3, -5, -7], [4, 6, 8]]


def test_what_results_are_made_of_is_in_the_first_part():
    def step(x, count):
        count = count + 1.0
        return x / count, count

    _, first, second = parts_of(step, X, np.float32(1), rows=[0, None])
    assert (names(first), names(second)) == (["add", "div"], [])


def test_what_calls_python_is_in_the_first_part():
    def step(x, total):
        total = total + 1.0
        jax.debug.print("{}", total)
        return x, total

    _, first, second = parts_of(step, X, np.float32(1), rows=[0, None])
    assert names(first)[0] == "add"
    assert names(second) == []


def test_what_nobody_needs_is_in_neither():
    def step(x, total):
        jnp.sin(x)
        return x, total * 2.0

    _, first, second = parts_of(step, X, np.float32(1), rows=[0, None])
    assert (names(first), names(second)) == ([], ["mul"])
