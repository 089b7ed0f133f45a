"""A product that is transposed at once: one operation, and the same numbers."""

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from jax import lax

import replicax as rx
from replicax._cpu import kernels, products, programs
from replicax._cpu.products import with_products_turned

from helpers import assert_trees_close, tuned


def numbers(*shape):
    return np.random.default_rng(0).normal(size=shape).astype("float32")


def kinds(fn, *args):
    """How many products and transposes the program has."""
    names = [equation.primitive.name for equation in jax.make_jaxpr(fn)(*args).eqns]
    return names.count("dot_general"), names.count("transpose")


def gradient(w, x):
    return jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w) ** 2))(w)


def test_the_gradient_of_a_weight_is_one_product():
    w, x = numbers(4, 3), numbers(5, 4)
    assert kinds(gradient, w, x) == (2, 1)
    assert kinds(with_products_turned(gradient, "cpu"), w, x) == (2, 0)
    assert_trees_close(with_products_turned(gradient, "cpu")(w, x), gradient(w, x))


@pytest.mark.parametrize("pairs", [False, True])
def test_products_of_which_only_32_bits_are_used_are_not_rounded(pairs, monkeypatch):
    monkeypatch.setattr(kernels, "multiplies_pairs", lambda: pairs)
    x, w = (jnp.asarray(numbers(*shape), "bfloat16") for shape in ((5, 40), (40, 3)))

    def wide(x, w):
        return (x @ w).astype("float32")

    def both(x, w):
        return x @ w, wide(x, w)

    exact = x.astype("float32") @ w.astype("float32")
    (product, *_) = jax.make_jaxpr(programs.with_rules(wide))(x, w).eqns
    # The instructions for pairs round at no cost.
    assert product.outvars[0].aval.dtype == ("bfloat16" if pairs else "float32")
    if not pairs:
        found = jax.jit(programs.with_rules(wide))(x, w)
        np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-5)
    rounded, same = jax.jit(programs.with_rules(both))(x, w)
    np.testing.assert_allclose(rounded.astype("float32"), exact, rtol=2**-8)
    assert rounded.dtype == "bfloat16" and same.dtype == "float32"


def test_beside_operations_without_results():
    seen = []

    def step(w, x):
        jax.debug.callback(seen.append, x.sum())
        return gradient(w, x)

    w, x = numbers(4, 3), numbers(5, 4)
    assert_trees_close(jax.jit(with_products_turned(step, "cpu"))(w, x), gradient(w, x))
    jax.effects_barrier()
    assert_trees_close(seen, [x.sum()])


# [batch, a, k] and [batch, k, b, c] give [batch, a, b, c].
DIMENSIONS = (((2,), (1,)), ((0,), (0,)))


def batched(left, right):
    """With the free axes of the right operand first."""
    return lax.dot_general(left, right, DIMENSIONS).transpose(0, 2, 3, 1)


def test_products_of_batches():
    left, right = numbers(2, 3, 5), numbers(2, 5, 4, 6)
    assert kinds(with_products_turned(batched, "cpu"), left, right) == (1, 0)
    expected = np.einsum("nak,nkbc->nbca", left, right)
    assert_trees_close(with_products_turned(batched, "cpu")(left, right), expected)


def used_twice(left, right):
    product = left @ right
    return product.T, product.sum()


def other_order(left, right):
    return lax.dot_general(left, right, DIMENSIONS).transpose(0, 3, 2, 1)


def of_an_algorithm(left, right):
    algorithm = lax.DotAlgorithmPreset.F32_F32_F32
    return lax.dot_general(left, right, (((1,), (0,)), ((), ())), precision=algorithm).T


@pytest.mark.parametrize(
    ("step", "left", "right"),
    [
        (used_twice, (3, 5), (5, 4)),
        (other_order, (2, 3, 5), (2, 5, 4, 6)),
        (of_an_algorithm, (3, 5), (5, 4)),
    ],
)
def test_others_stay_as_they_are(step, left, right):
    args = numbers(*left), numbers(*right)
    assert kinds(with_products_turned(step, "cpu"), *args) == (1, 1)
    assert_trees_close(with_products_turned(step, "cpu")(*args), step(*args))


def test_other_devices_and_the_switch():
    assert with_products_turned(gradient, "gpu") is gradient
    step = with_products_turned(gradient, "cpu")
    with tuned(products=False):
        assert kinds(step, numbers(4, 3), numbers(5, 4)) == (2, 1)


def by_function(w, x):
    return rx.function(gradient)(w, x)


def by_run(devices):
    def gradients(w, x):
        strategy = rx.MirroredStrategy([f"CPU:{number}" for number in range(devices)])
        run = strategy.run(lambda: gradient(jnp.asarray(w), jnp.asarray(x)))
        return strategy.experimental_local_results(run)[0]

    return gradients


def by_fit(w, x):
    """The loss is a mean of 5 × 3 squares."""
    with rx.OneDeviceStrategy("CPU:0").scope():
        model = keras.Sequential([keras.Input(w.shape[:1]), keras.layers.Dense(3, "tanh")])
        model.compile(keras.optimizers.SGD(float(x.shape[0] * 3)), "mse")
    model.set_weights([w, np.zeros(3, "float32")])
    model.fit(x, np.zeros((x.shape[0], 3)), batch_size=x.shape[0], verbose=0)
    return w - model.get_weights()[0]


@pytest.mark.parametrize("computed", [by_function, by_run(1), by_run(2), by_fit])
def test_programs_that_turn_them(computed, monkeypatch):
    def noted(closed):
        programs.append(own(closed))
        names = [equation.primitive.name for equation in programs[-1].jaxpr.eqns]
        assert "transpose" not in names
        return programs[-1]

    programs, own = [], products.turned
    monkeypatch.setattr(products, "turned", noted)
    w, x = numbers(4, 3), numbers(5, 4)
    assert_trees_close(np.asarray(computed(w, x)), gradient(w, x))
    assert "dot_general" in str(programs)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    "total",
    [
        lambda x: jax.vjp(lambda bias: jnp.broadcast_to(bias, x.shape), x[0])[1](x)[0],
        lambda x: lax.cumsum(x, 0)[-1],
    ],
    ids=["gradient of a bias", "cumsum"],
)
def test_sums_of_sixteen_bits_are_rounded_once(total, dtype):
    rows = jnp.asarray(numbers(2000, 16) / 16 + 1, dtype)
    with tuned():
        found = jax.jit(programs.with_rules(total))(rows)
    right = np.asarray(rows, "float64").sum(0).astype(dtype)
    assert found.dtype == dtype
    np.testing.assert_allclose(
        found.astype("float32"), right.astype("float32"), rtol=float(jnp.finfo(dtype).eps)
    )
