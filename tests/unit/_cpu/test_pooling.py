"""Pooling on CPUs: its gradient is to the last bit what XLA's own operation gives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import replicax as rx
from replicax._cpu.programs import with_rules
from replicax._cpu.tuning import choose

from helpers import tuned


def gradient(pool, x, g):
    """The gradient of `pool` at `x`, in a program of its own."""
    return jax.jit(with_rules(lambda x, g: jax.vjp(pool, x)[1](g)[0]))(x, g)


def windows(kind, sizes, strides, padding):
    start = -np.inf if kind is lax.max else np.inf
    return lambda x: lax.reduce_window(x, np.array(start, x.dtype), kind, sizes, strides, padding)


def both(pool, x):
    """The gradient by comparing, and as JAX computes it."""
    g = np.random.default_rng(1).normal(size=jax.eval_shape(pool, x).shape).astype(x.dtype)
    with rx.config.cpu_tuning(True):
        ours = gradient(pool, x, g)
    with rx.config.cpu_tuning(False):
        return np.asarray(ours), np.asarray(gradient(pool, x, g))


def configuration(seed):
    """Random windows over a random array with many ties."""
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(1, 5))
    sizes = tuple(map(int, rng.integers(1, 4 if rank < 4 else 3, rank)))
    strides = tuple(map(int, rng.integers(1, 5, rank)))
    shape = tuple(int(size + rng.integers(0, 7)) for size in sizes)
    padding = ["SAME", "VALID", [tuple(map(int, rng.integers(0, n, 2))) for n in sizes]][seed % 3]
    kind = lax.min if seed % 5 == 4 else lax.max
    return rng.integers(-2, 3, shape).astype(np.float32), (kind, sizes, strides, padding)


@pytest.mark.parametrize("seed", range(40))
def test_random_windows_with_ties(seed):
    x, given = configuration(seed)
    np.testing.assert_array_equal(*both(windows(*given), x))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize(("size", "stride"), [(2, 2), (3, 2)])
def test_types_of_floating_point(dtype, size, stride):
    x = np.random.default_rng(0).integers(-3, 4, (2, 9, 8, 3)).astype(jnp.dtype(dtype))
    ours, stock = both(windows(lax.max, (1, size, size, 1), (1, stride, stride, 1), "SAME"), x)
    assert ours.dtype == x.dtype
    # XLA rounds sums of small types where it likes.
    exact = dtype == "float32" or size == stride
    tolerance = 0 if exact else 0.05
    np.testing.assert_allclose(
        ours.astype(float), stock.astype(float), rtol=tolerance, atol=tolerance
    )


@pytest.mark.parametrize(
    ("sizes", "strides", "padding", "gaps"),
    [
        ((1, 2, 2, 1), (1, 2, 2, 1), "VALID", (1, 1, 1, 1)),
        ((1, 3, 3, 1), (1, 2, 2, 1), "SAME", (1, 1, 1, 1)),
        ((2, 3, 1, 1), (1, 3, 1, 1), "SAME", (1, 2, 1, 1)),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_largest_and_the_mean_of_windows(sizes, strides, padding, gaps, dtype):
    x = np.random.default_rng(0).normal(size=(2, 9, 8, 3)).astype(jnp.dtype(dtype))
    x[0, 3, 3] = np.nan
    for kind, start in ((lax.max, -np.inf), (lax.add, 0)):
        found = []
        for on in (True, False):

            def pool(x, kind=kind, start=start):
                edge, dilation = np.array(start, x.dtype), {"window_dilation": gaps}
                return lax.reduce_window(x, edge, kind, sizes, strides, padding, **dilation)

            def both_ways(x, pool=pool):
                # JAX has no gradient of the largest element of a window with gaps.
                slope = jax.grad(lambda x: (pool(x) ** 2).sum()) if max(gaps) == 1 else pool
                return pool(x), slope(x)

            with choose({"pooling"} if on else ()):
                traced = jax.jit(with_rules(both_ways)).lower(x)
                ours = on and (kind is lax.max or np.prod(sizes) > 4)
                assert ("reduce_window" in traced.as_text()) is not ours
                found.append([np.asarray(part, np.float32) for part in traced.compile()(x)])
        for own, stock in zip(*found, strict=True):
            tolerance = 0.05 if dtype == "bfloat16" else 1e-5
            np.testing.assert_allclose(own, stock, rtol=tolerance, atol=tolerance)


def test_a_tie_goes_to_the_first_alone():
    x = np.float32([3, 3, 1, 1, 2, 2, 2, 5])
    ours, stock = both(windows(lax.max, (4,), (4,), "VALID"), x)
    np.testing.assert_array_equal(ours != 0, [1, 0, 0, 0, 0, 0, 0, 1])
    np.testing.assert_array_equal(ours, stock)


def test_values_that_are_no_numbers_go_where_they_go_in_xla():
    special = np.float32([np.nan, -np.inf, np.inf, 0.0, -0.0, 1.0])
    x = np.random.default_rng(0).choice(special, (4, 12, 12))
    np.testing.assert_array_equal(*both(windows(lax.max, (1, 3, 3), (1, 2, 2), "SAME"), x))


def test_under_vmap_and_in_a_loop():
    pool = windows(lax.max, (2, 2), (2, 2), "SAME")
    x = np.random.default_rng(0).normal(size=(3, 5, 6)).astype(np.float32)
    np.testing.assert_array_equal(*both(jax.vmap(pool), x))
    np.testing.assert_array_equal(*both(lambda x: lax.map(pool, x), x))


def program(pool, x):
    return jax.jit(with_rules(jax.grad(lambda x: pool(x).sum()))).lower(x).as_text()


def test_what_is_not_covered_and_what_is_switched_off_is_the_program_of_jax():
    x = np.zeros((1, 32), np.float32)
    small, large = (windows(lax.max, (1, size), (1, 1), "SAME") for size in (3, 20 * 4))
    assert "select_and_scatter" not in program(small, x)
    assert "select_and_scatter" in program(large, np.zeros((1, 100), np.float32))
    with tuned(pooling=False):
        assert "select_and_scatter" in program(small, x)


def test_a_divided_batch_stays_divided():
    mesh = jax.make_mesh((2,), ("batch",), devices=jax.devices("cpu")[:2])
    split = jax.NamedSharding(mesh, jax.P("batch"))
    x = jax.device_put(np.random.default_rng(0).normal(size=(4, 8, 8, 2)).astype("f"), split)
    pool = windows(lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")
    compiled = jax.jit(with_rules(jax.grad(lambda x: (pool(x) ** 2).sum()))).lower(x).compile()
    text = compiled.as_text()
    assert not any(word in text for word in ("all-gather", "all-to-all", "collective-permute"))
    np.testing.assert_array_equal(
        compiled(x), jax.jit(with_rules(jax.grad(lambda x: (pool(x) ** 2).sum())))(np.asarray(x))
    )
