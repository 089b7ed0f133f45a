"""Loops over `bfloat16` on CPUs: the same to the last bit, and no array becomes `float32` whole."""

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


@pytest.mark.parametrize("function", [recurrent, nested])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_scan_gives_the_same(function, dtype):
    found, expected, _ = both(function, *arrays(dtype))
    for ours, stock in zip(found, expected, strict=True):
        assert ours.dtype == stock.dtype
        np.testing.assert_array_equal(ours, stock)


def two_layers(weights, rows):
    """The gradient by weights of two loops, one backwards, and by those of their states."""

    def loss(both, rows):
        weights, of_states = both

        def round_(state, row):
            new = jnp.tanh(row @ weights + state @ of_states)
            return new, new

        return sum(
            jnp.sum(lax.scan(round_, jnp.ones((ROWS, WIDTH)), seen, reverse=backwards)[1] ** 2)
            for seen, backwards in ((rows, False), (2 * rows, True))
        )

    return jax.grad(loss)((weights, weights.T), rows)


def carried(function, *args):
    """How many arrays each loop of the tuned program carries."""
    with choose({"loops"}):
        return carries(jax.make_jaxpr(with_rules(function))(*args))


def carries(program):
    """How many results of each loop have one shape inside and outside of it."""
    return [
        sum(
            outside.aval.shape == inside.aval.shape
            for outside, inside in zip(one.outvars, one.params["jaxpr"].jaxpr.outvars, strict=True)
        )
        for one in program.eqns
        if one.primitive is lax.scan_p
    ]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_numbers_may_have_64_bits(dtype):
    with jax.enable_x64(True):
        found, expected, _ = both(gradient, *arrays(dtype))
    for ours, stock in zip(found, expected, strict=True):
        assert ours.dtype == stock.dtype == dtype
        np.testing.assert_allclose(ours, stock, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("function", [gradient, two_layers])
def test_the_gradient_by_weights_is_summed_behind_the_loop(function, dtype):
    weights, rows = arrays(dtype)
    found, expected, _ = both(function, weights, rows)
    *_, last = carried(function, weights, rows)
    *_, before = carries(jax.make_jaxpr(function)(weights, rows))
    assert last < before
    exact = jax.tree.leaves(function(weights.astype("float32"), rows.astype("float32")))
    for ours, stock, right in zip(found, expected, exact, strict=True):
        assert ours.dtype == stock.dtype
        atol = float(abs(right).max()) * (2**-7 if dtype == "bfloat16" else 1e-6)
        np.testing.assert_allclose(ours.astype("float32"), right, rtol=0, atol=atol)


def mixed(weights, rows):
    """The gradient by `float32` weights and a bias of a loop that computes in `bfloat16`."""

    def loss(both, rows):
        def round_(state, row):
            weights, bias = (one.astype(rows.dtype) for one in both)
            new = jnp.tanh(row @ weights + state + bias)
            return new, new

        start = jnp.zeros((ROWS, WIDTH), rows.dtype)
        return jnp.sum(lax.scan(round_, start, rows)[1].astype("float32") ** 2)

    both = weights.astype("float32"), jnp.ones((1, WIDTH), "float32")
    return jax.grad(loss)(both, rows)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_casts_and_sums_of_rows_move_behind_the_loop(dtype):
    weights, rows = arrays(dtype)
    assert carried(mixed, weights, rows) == [1, 1]
    found, _, _ = both(mixed, weights, rows)
    exact = jax.tree.leaves(mixed(weights, rows.astype("float32")))
    for ours, right in zip(found, exact, strict=True):
        assert ours.dtype == "float32"
        atol = float(abs(right).max()) * (2**-6 if dtype == "bfloat16" else 1e-6)
        np.testing.assert_allclose(ours, right, rtol=0, atol=atol)


def summed_alone(weights, rows):
    """A loop that does nothing but to add products of what it reads."""

    def round_(total, row):
        return total + jnp.einsum("ri,rj->ij", row, row), None

    return lax.scan(round_, weights, rows)[0]


def test_a_loop_without_results_goes():
    weights, rows = arrays("float32")
    assert carried(summed_alone, weights, rows) == []
    found, expected, _ = both(summed_alone, weights, rows)
    np.testing.assert_allclose(found[0], expected[0], rtol=0, atol=1e-5)


def with_effects(weights, rows):
    """A loop that tells Python what it reads."""

    def round_(total, row):
        jax.debug.callback(lambda _: None, row)
        return total + row.T @ row, None

    return lax.scan(round_, weights, rows)[0]


def accumulated(weights, rows):
    """A loop whose factors are larger than what it stacks: each round keeps its product."""

    def round_(total, row):
        wide = jnp.tanh(row @ jnp.ones((WIDTH, 64), row.dtype))
        return total + wide.T @ wide, None

    return lax.scan(round_, jnp.zeros((64, 64), rows.dtype) + weights[0, 0], rows)[0]


def shown(weights, rows):
    """A sum that a round also reads."""

    def round_(total, row):
        return total + row.T @ row, total[0]

    return lax.scan(round_, weights, rows)


@pytest.mark.parametrize("function", [accumulated, shown, with_effects])
def test_other_sums_stay_in_the_loop(function):
    given = arrays("float32")
    assert carried(function, *given) == [1]
    found, expected, _ = both(function, *given)
    for ours, stock in zip(found, expected, strict=True):
        np.testing.assert_array_equal(ours, stock)


def summed_from(weights, rows):
    """A sum that begins with something, of rows and of what a round computes; two of three go."""

    def round_(state, row):
        total, other, last = state
        seen = jnp.sin(row)
        first = jnp.einsum("ri,rj->ij", row, seen)
        return (total + first, jnp.einsum("ri,rj->ji", seen, row) + other, seen), None

    start = weights, 2 * weights, jnp.zeros((ROWS, WIDTH), rows.dtype)
    return lax.scan(round_, start, rows)[0]


def test_sums_begin_with_what_was_carried():
    weights, rows = arrays("float32")
    assert carried(summed_from, weights, rows) == [1]
    found, _, _ = both(summed_from, weights, rows)
    row, seen = (np.asarray(one, "float64") for one in (rows, np.sin(rows)))
    total = np.einsum("tri,trj->ij", row, seen)
    for ours, right in zip(found, (weights + total, 2 * weights + total, seen[-1]), strict=True):
        np.testing.assert_allclose(ours, right, rtol=0, atol=1e-5)


def test_rounds_read_and_write_their_slices_alone():
    *_, text = both(recurrent, *arrays("bfloat16"))
    assert f"u16[{ROUNDS},{ROWS},{WIDTH}]" in text
    assert f"f32[{ROUNDS},{ROWS},{WIDTH}]" not in text
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
