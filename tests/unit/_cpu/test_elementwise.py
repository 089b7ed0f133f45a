"""Chains of elementwise operations of `bfloat16` on CPUs are computed in 32 bits, rounded once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from replicax._cpu.programs import with_rules
from replicax._cpu.tuning import choose

WIDE, HALF = (jnp.asarray(value, "bfloat16") for value in (256.0, 0.5))


def tuned(function, *args):
    with choose({"elementwise"}):
        return jax.jit(with_rules(function))(*args)


def there_and_back(wide, half):
    """A sum that `bfloat16` cannot hold, and a difference that it can."""
    return (wide + half) - wide


def test_what_is_used_once_is_not_rounded():
    assert jax.jit(there_and_back)(WIDE, HALF) == 0.0
    assert tuned(there_and_back, WIDE, HALF) == 0.5
    with choose({"loops"}):
        assert jax.jit(with_rules(there_and_back))(WIDE, HALF) == 0.0


def corrected(total, lost, value):
    """A step of Kahan's sum: `lost` is what rounding the sum has lost."""
    value = value - lost
    new = total + value
    return new, (new - total) - value


def test_a_sum_that_corrects_its_rounding_errors_stays_right():
    total = lost = jnp.zeros((), "bfloat16")
    with choose({"elementwise"}):
        step = jax.jit(with_rules(corrected))
        for _ in range(1000):
            total, lost = step(total, lost, HALF)
    assert total == 500.0  # without correction it stays at 128, where 0.5 is lost


def test_results_and_what_is_used_twice_are_rounded():
    def function(wide, half):
        total = wide + half
        return total - wide, -total, total

    assert list(map(float, tuned(function, WIDE, HALF))) == [0.0, -256.0, 256.0]


def through_parts(wide, half):
    first, second = jnp.split(wide + jnp.stack([half, half]), 2)
    return (first - wide)[0], (lax.slice(second, [0], [1]) - wide)[0]


def through_a_cast(wide, half):
    total = (wide.astype("float32") + 0.5).astype("bfloat16")
    return jax.nn.relu(jax.jit(lambda value: value - wide)(total)).astype("float32")


def test_parts_elementwise_functions_and_casts_are_inside_of_a_chain():
    assert list(map(float, tuned(through_parts, WIDE, HALF))) == [0.5, 0.5]
    assert tuned(through_a_cast, WIDE, HALF) == 0.5
    assert jax.jit(through_a_cast)(WIDE, HALF) == 0.0


def test_a_rounding_that_a_program_looks_at_stays():
    def lost(value, half):  # what rounding loses, as compressed gradients send it later
        exact = value.astype("float32") + half.astype("float32")
        rounded = exact.astype("bfloat16")
        return exact - rounded.astype("float32"), lax.optimization_barrier(rounded)

    assert tuned(lost, WIDE, HALF)[0] == tuned(lambda *args: lost(*args)[0], WIDE, HALF) == 0.5


def test_a_function_with_shardings_keeps_them():
    mesh = jax.make_mesh((2,), ("data",), axis_types=(AxisType.Auto,))
    divided = NamedSharding(mesh, PartitionSpec("data"))
    inner = jax.jit(lambda value: value * 2 + 1, out_shardings=divided)
    found = tuned(lambda value: inner(value), jnp.ones(4, "bfloat16"))
    assert found.sharding.is_equivalent_to(divided, 1)


def test_equations_without_results_stay():
    seen = []

    def function(value):
        jax.debug.callback(lambda found: seen.append(float(found)), value * 2)
        return value + 1

    assert tuned(function, HALF) == 1.5
    jax.effects_barrier()
    assert seen == [1.0]


@pytest.mark.parametrize(
    "place",
    [
        lambda *args: jax.jit(there_and_back)(*args),
        lambda *args: lax.scan(lambda state, _: (there_and_back(*args), state), 0 * HALF, None, 2)[
            0
        ],
        lambda *args: lax.cond(args[0] > 0, there_and_back, lambda *_: 0 * HALF, *args),
        jax.remat(there_and_back),
    ],
    ids=["jit", "scan", "cond", "remat"],
)
def test_programs_inside_of_others_too(place):
    assert tuned(place, WIDE, HALF) == 0.5


def test_choices_and_powers_keep_the_types_of_their_operands():
    def function(values):
        chosen = jnp.where(values > 1, values + 0.001, -values) * 0.1
        return lax.pow(jnp.abs(chosen) + 0.001, jnp.int32(2)) + lax.integer_pow(chosen, 3)

    values = jnp.linspace(0.5, 2.0, 7, dtype="bfloat16")
    exact = function(values.astype("float32"))
    found = tuned(function, values)
    assert found.dtype == "bfloat16"
    np.testing.assert_allclose(found.astype("float32"), exact, rtol=2**-6)


@pytest.mark.parametrize("function", [jax.nn.gelu, jax.nn.silu, jax.nn.softplus, jnp.tanh])
def test_gradients_come_closer_to_those_of_32_bits(function):
    def gradient(values):
        return jax.grad(lambda values: jnp.sum(function(values).astype("float32")))(values)

    values = jnp.linspace(-3, 3, 200, dtype="bfloat16")
    exact = gradient(values.astype("float32"))
    ours, stock = (
        float(abs(found.astype("float32") - exact).mean())
        for found in (tuned(gradient, values), jax.jit(gradient)(values))
    )
    assert ours <= stock and ours < 2**-8


def test_other_types_stay_as_they_are():
    def function(values):
        return (values + 1) * values

    for dtype in ("float16", "float32", "int32"):
        with choose({"elementwise"}):
            found = jax.make_jaxpr(with_rules(function))(jnp.ones(3, dtype))
        assert str(found) == str(jax.make_jaxpr(function)(jnp.ones(3, dtype)))


def test_what_is_also_read_in_32_bits_is_not_converted_back_and_forth():
    def function(values):  # as a softmax does
        raised = jnp.exp(values)
        return jnp.sum(raised.astype("float32")), raised * 2

    with choose({"elementwise"}):
        found = jax.make_jaxpr(with_rules(function))(jnp.ones(3, "bfloat16"))
    (raised,) = (one for one in found.eqns if one.primitive.name == "exp")
    assert raised.outvars[0].aval.dtype == "bfloat16"
