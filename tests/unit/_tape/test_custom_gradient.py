"""Derivatives that functions bring along, and functions that are computed twice."""

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
from replicax._core.errors import UsageError
from replicax._tape.custom_gradient import recompute_grad

TWO = jnp.float32(2.0)


@pytest.fixture(params=["compiled", "eager"])
def once(request):
    """Call a function: compiled, or as it is."""
    return lambda fn, *args: (rx.function(fn) if request.param == "compiled" else fn)(*args)


def with_tape(fn, *sources, variables=()):
    """Value and gradients of a function of arrays."""
    with rx.GradientTape() as tape:
        tape.watch(list(sources))
        value = fn(*sources)
    return value, tape.gradient(value, [*sources, *variables])


@rx.custom_gradient
def swapped(x, y):
    return x * y, lambda upstream: (upstream * 10, upstream * 20)


def test_the_given_gradient_counts(once):
    value, gradients = once(lambda x: with_tape(lambda x, y: swapped(x, y) * 3, x, x + 1), TWO)
    assert float(value) == 18.0
    assert [float(g) for g in gradients] == [30.0, 60.0]


def test_jax_uses_it_too():
    assert float(jax.jit(jax.grad(swapped))(TWO, TWO)) == 10.0
    w = keras.Variable(3.0)
    value, (gradient,) = rx.value_and_grad(lambda: swapped(w, 1.0), [w])()
    assert (float(value), float(gradient)) == (3.0, 10.0)
    assert jax.vmap(jax.grad(swapped))(jnp.ones(2), jnp.ones(2)).tolist() == [10.0, 10.0]


def test_several_results_and_arguments_without_influence(once):
    @rx.custom_gradient
    def fn(x, unused, power, index, name="a"):
        def grad(first, second):
            return first + second * 100, None, None, None

        return (x**power, {"a": x * index}[name]), grad

    def call(x):
        first, second = fn(x, jnp.arange(3), 2, jnp.int32(3), name="a")
        return first * 2 + second

    value, (gradient,) = once(lambda x: with_tape(call, x), TWO)
    assert (float(value), float(gradient)) == (4 * 2 + 6, 2 + 100)


def test_a_method(once):
    class Scaled:
        factor = 3.0

        @rx.custom_gradient
        def call(self, x):
            return x * self.factor, lambda upstream: upstream * 5

    value, (gradient,) = once(lambda x: with_tape(Scaled().call, x), TWO)
    assert (float(value), float(gradient)) == (6.0, 5.0)


def test_variables_that_the_function_reads(once):
    w, v = keras.Variable(3.0), keras.Variable(4.0)
    calls = keras.Variable(0, dtype="int32", trainable=False)

    @rx.custom_gradient
    def fn(x):
        calls.assign_add(1)

        def grad(upstream, variables=None):
            weights = {w.path: 10, v.path: 20}
            return upstream * w, [upstream * weights[one.path] for one in variables]

        return x * w * v, grad

    value, gradients = once(lambda x: with_tape(lambda x: fn(x) * 2, x, variables=[v, w]), TWO)
    assert float(value) == 48.0
    assert [float(g) for g in gradients] == [6.0, 40.0, 20.0]
    assert int(calls.value) == 1


def test_second_derivatives(once):
    @rx.custom_gradient
    def cubed(x):
        return x**3, lambda upstream: upstream * x**4  # 4 x³ is its own derivative

    slope, (second,) = once(lambda x: with_tape(lambda x: with_tape(cubed, x)[1][0], x), TWO)
    assert (float(slope), float(second)) == (16.0, 32.0)


def test_what_the_functions_must_return():
    w = keras.Variable(3.0)
    wrong = {
        r"must return `\(result, grad_fn\)`": lambda x: x,
        "2 gradients for 1": lambda x: (x, lambda g: (g, g)),
        "`variables=None`": lambda x: (x * w, lambda g: g),
        "0 gradients for 1": lambda x: (x * w, lambda g, variables: (g, [])),
    }
    for message, fn in wrong.items():
        with pytest.raises(UsageError, match=message):
            with_tape(rx.custom_gradient(fn), TWO)


def test_recompute_grad(once):
    w, total = keras.Variable(3.0), keras.Variable(0.0, trainable=False)

    @recompute_grad
    def fn(x, power):
        total.assign_add(x)
        return jnp.sin(w * x) ** power

    value, gradients = once(lambda x: with_tape(lambda x: fn(x, 2), x, variables=[w]), TWO)
    slope = 2 * np.sin(6.0) * np.cos(6.0)
    np.testing.assert_allclose(value, np.sin(6.0) ** 2, rtol=1e-5)
    np.testing.assert_allclose(gradients, [3 * slope, 2 * slope], rtol=1e-5)
    assert float(total.value) == 2.0


def test_recompute_grad_computes_twice():
    def fn(x):
        return with_tape(lambda x: recompute_grad(lambda x: jnp.sin(jnp.sin(x)))(x), x)[1]

    plain = jax.make_jaxpr(lambda x: jax.grad(lambda x: jnp.sin(jnp.sin(x)))(x))(TWO)
    found = str(jax.make_jaxpr(fn)(TWO))
    assert str(plain).count("= sin ") == 2
    assert found.count("= sin ") > 2
