"""Loops over `bfloat16` on CPUs: the same to the last bit, and no array becomes `float32` whole."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, PartitionSpec

import replicax as rx
from replicax._cpu.programs import with_rules
from replicax._cpu.tuning import choose

ROUNDS, ROWS, WIDTH = 7, 3, 4


def recurrent(weights, rows):
    """A recurrent network: what each round stores is what the gradient reads."""

    def round_(state, row):
        state = jnp.tanh(row @ weights + state)
        return state, (state, row.sum(), jnp.ones((), rows.dtype))

    return lax.scan(round_, jnp.zeros((ROWS, WIDTH), rows.dtype), rows)


def gradient(weights, rows):
    def loss(weights, rows):
        last, stored = recurrent(weights, rows)
        return sum(jnp.sum(one.astype(jnp.float32) ** 2) for one in (last, *stored))

    return jax.grad(loss, argnums=(0, 1))(weights, rows)


def nested(weights, rows):
    return lax.scan(lambda total, _: (total, recurrent(weights, rows)[1]), 0.0, None, length=2)


def both(function, *args):
    """The results with loops tuned, and as JAX computes them; the text of the tuned program."""
    with choose({"loops"}):
        program = jax.jit(with_rules(function)).lower(*args).compile()
    found, expected = program(*args), jax.jit(function)(*args)
    return *map(jax.tree.leaves, (found, expected)), program.as_text()


def arrays(dtype):
    random = np.random.default_rng(0)
    shapes = (WIDTH, WIDTH), (ROUNDS, ROWS, WIDTH)
    return [jnp.asarray(random.normal(size=shape), dtype) for shape in shapes]


@pytest.mark.parametrize("function", [recurrent, gradient, nested])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_scan_gives_the_same(function, dtype):
    found, expected, _ = both(function, *arrays(dtype))
    for ours, stock in zip(found, expected, strict=True):
        assert ours.dtype == stock.dtype
        np.testing.assert_array_equal(ours, stock)


def test_rounds_write_their_slices_alone():
    *_, text = both(recurrent, *arrays("bfloat16"))
    assert f"u16[{ROUNDS},{ROWS},{WIDTH}]" in text
    assert not [
        line
        for line in text.splitlines()
        if "dynamic-update-slice(" in line and "f32" in line.partition("=")[2].partition("(")[0]
    ]


def test_an_update_of_a_slice_gives_the_same():
    def update(x, part, at):
        return lax.fori_loop(0, 3, lambda i, x: lax.dynamic_update_slice(x, part, (at + i, 0)), x)

    x, part = jnp.full((6, 4), -jnp.inf, "bfloat16"), jnp.arange(8, dtype="bfloat16").reshape(2, 4)
    (ours,), (stock,), text = both(update, x, part, 1)
    np.testing.assert_array_equal(ours, stock)
    assert "u16[6,4]" in text


def test_programs_that_store_no_bfloat16_stay_the_same_object():
    closed = jax.make_jaxpr(recurrent)(*arrays("float32"))
    with choose({"loops"}):
        text = str(jax.make_jaxpr(with_rules(recurrent))(*arrays("float32")))
    assert "bitcast" not in text
    assert text.count("scan[") == str(closed).count("scan[")


def test_replicas_may_meet_in_a_round():
    def replica(rows):
        def round_(total, row):
            total += lax.psum(row, "replica")
            return total, total

        return lax.scan(round_, jnp.zeros(WIDTH, rows.dtype), rows)[1]

    mesh = Mesh(np.array(jax.devices("cpu")[:2]), ["replica"])
    spec = PartitionSpec(None, "replica")
    rows = jnp.arange(ROUNDS * 2 * WIDTH, dtype="bfloat16").reshape(ROUNDS, 2 * WIDTH)
    for vma in (True, False):
        mapped = jax.shard_map(replica, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=vma)
        (ours,), (stock,), text = both(mapped, rows)
        np.testing.assert_array_equal(ours, stock)
        assert f"u16[{ROUNDS},{WIDTH}]" in text


def test_a_switch_turns_it_off():
    with rx.config.cpu_tuning(False):
        text = str(jax.make_jaxpr(with_rules(recurrent))(*arrays("bfloat16")))
    assert "bitcast" not in text
