"""Adam by the kernel: the formula's numbers, in place, with JAX's transformations; where it is."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from replicax._cpu import adam as module
from replicax._cpu import kernels
from replicax._cpu.adam import Settings, adam

pytestmark = pytest.mark.skipif(not kernels.are_there(), reason="the kernels are not built")

SETTINGS = Settings(0.9, 0.99, 1e-3)
RATE = np.float32(0.01)
# Of one element, of a piece that a thread takes at a time, of one more, and of several.
SHAPES = [(), (17,), (16384,), (16385,), (7, 5741), (250, 260)]
SQUARES = [(4, 3), (5,)]


def drawn(shapes, draw=lambda rng, shape: rng.normal(size=shape)):
    """What is held, and gradients: velocities are no less than 0."""
    rng = np.random.default_rng(3)
    held = [np.asarray(draw(rng, shape), "float32") for shape in 4 * shapes]
    count = len(shapes)
    held[2 * count : 3 * count] = map(np.abs, held[2 * count : 3 * count])
    return held


def step(*arrays, settings=SETTINGS):
    *arrays, rate = arrays
    count = len(arrays) // 4 * 3
    return adam(arrays[:count], arrays[count:], rate, settings)


def formula(*arrays):
    return module._formula(*arrays, settings=SETTINGS)


def numbers(function, *arrays):
    return [np.asarray(one) for one in jax.jit(function)(*arrays)]


def text(function, *arrays):
    return jax.jit(function).lower(*arrays).as_text()


def is_by_kernel(function, *arrays):
    return "@rx_adam" in text(function, *arrays)


def close(ours, stock):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), ours, stock)


def test_numbers_of_all_sizes_are_those_of_numpy():
    arrays = drawn(SHAPES)
    assert is_by_kernel(step, *arrays, RATE)
    to_momentum, to_velocity, epsilon = map(np.float32, (1 - 0.9, 1 - 0.99, 1e-3))
    parts = [arrays[i :: len(SHAPES)] for i in range(len(SHAPES))]
    news = [[], [], []]
    for value, momentum, velocity, gradient in parts:
        momentum = momentum + (gradient - momentum) * to_momentum
        velocity = velocity + (gradient * gradient - velocity) * to_velocity
        news[0].append(value - momentum * RATE / (np.sqrt(velocity) + epsilon))
        news[1].append(momentum)
        news[2].append(velocity)
    # To the last bit: no operation is left out, or done in another order.
    jax.tree.map(np.testing.assert_array_equal, numbers(step, *arrays, RATE), sum(news, []))


def test_an_array_without_elements_leaves_all_to_jax():
    arrays = drawn([(3, 0, 2), (17,)])
    assert not is_by_kernel(step, *arrays, RATE)
    close(numbers(step, *arrays, RATE), numbers(formula, *arrays, RATE))


def test_numbers_that_are_special_stay_what_they_are():
    some = np.array(
        [0, -0.0, np.inf, -np.inf, np.nan, 1e-41, -1e-45, 3e38, -3e38, 1e-30], "float32"
    )
    arrays = drawn([(40000,), (33, 31)], lambda rng, shape: rng.choice(some, shape))
    ours, stock = numbers(step, *arrays, RATE), numbers(formula, *arrays, RATE)
    for a, b in zip(ours, stock, strict=True):
        np.testing.assert_array_equal(np.isnan(a), np.isnan(b))
        np.testing.assert_allclose(a, b, rtol=1e-5)


def test_one_array_in_all_places():
    array = np.full((40000,), 2.0, "float32")
    news = numbers(lambda x, rate: step(x, x, x, x, rate), array, RATE)
    stock = numbers(lambda x, rate: formula(x, x, x, x, rate), array, RATE)
    close(news, stock)
    assert (array == 2).all()


def test_what_is_given_away_is_changed_in_place():
    def trained(held, x):
        def loss(values):
            return (jnp.tanh(x @ values[0]) @ values[1]).sum()

        return adam(held, jax.grad(loss)(held[:2]), RATE, SETTINGS)

    held = drawn([(64, 64), (64, 64)])[:6]
    compiled = jax.jit(trained, donate_argnums=0).lower(held, np.ones((8, 64), "float32")).compile()
    assert "rx_adam" in compiled.as_text()
    # The first layer's gradient is computed from the second's value, before that is changed.
    assert not re.findall(r"f32\[64,64\]\S* copy\(", compiled.as_text())


TRANSFORMED = {
    "jvp": lambda fn: lambda *x: jax.jvp(fn, x, x)[1],
    "gradient": lambda fn: jax.grad(
        lambda *x: sum(jnp.sin(one).sum() for one in fn(*x)), tuple(range(8))
    ),
    "vmap": lambda fn: lambda *x: jax.vmap(fn, (*[None, 0] * 4, None))(
        *x[:1], x[1][None] + jnp.ones((3, 1)), *sum(([a, b[None] * jnp.ones((3, 1))] for a, b in
        zip(x[2:8:2], x[3:8:2], strict=True)), []), x[8]
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TRANSFORMED)
def test_transformations_are_those_of_the_formula(name):
    arrays = [jnp.asarray(one) for one in (*drawn(SQUARES), RATE)]
    ours, stock = (TRANSFORMED[name](fn) for fn in (step, formula))
    assert not is_by_kernel(ours, *arrays)
    close(jax.jit(ours)(*arrays), jax.jit(stock)(*arrays))


def test_without_a_program_around_it():
    arrays = drawn(SQUARES)
    expected = numbers(formula, *arrays, RATE)
    close(list(step(*map(jnp.asarray, arrays), RATE)), expected)
    with jax.disable_jit():
        close(list(step(*map(jnp.asarray, arrays), RATE)), expected)


@pytest.fixture
def mesh():
    return jax.make_mesh((2,), ("rows",), (AxisType.Auto,), devices=jax.devices("cpu")[:2])


@pytest.mark.parametrize("checked", [True, False])
def test_each_device_by_the_kernel(mesh, checked):
    rows, whole = PartitionSpec("rows"), PartitionSpec()
    arrays = drawn([(4, 3), (6, 5)])

    def from_rows(*arrays):
        return [new - jnp.ones_like(new) for new in step(*arrays)]

    # The second variable begins alike on both; its gradient makes it differ.
    arrays[1::2] = [np.ones_like(one) for one in arrays[1:6:2]] + arrays[7:]
    specs = (*[rows, PartitionSpec()] * 3, rows, rows, whole)
    mapped = jax.shard_map(from_rows, mesh=mesh, in_specs=specs, out_specs=rows, check_vma=checked)
    halves = [one if i not in (1, 3, 5) else one[:3] for i, one in enumerate(arrays)]
    given = [*halves, RATE]
    assert is_by_kernel(mapped, *given)
    close(numbers(mapped, *given), numbers(lambda *x: [y - 1 for y in formula(*x)], *arrays, RATE))


def test_arrays_that_are_divided_stay_so(mesh):
    arrays = drawn([(4, 3), (6, 5)])
    divided = jax.device_put(arrays, NamedSharding(mesh, PartitionSpec("rows")))
    assert not is_by_kernel(step, *divided, RATE)
    assert "all-gather" not in jax.jit(step).lower(*divided, RATE).compile().as_text()
    close(numbers(step, *divided, RATE), numbers(formula, *arrays, RATE))


def test_arrays_that_all_devices_have_are_not_exchanged(mesh):
    whole = NamedSharding(mesh, PartitionSpec())
    arrays = jax.device_put((*drawn([(4, 3), (6, 5)]), RATE), whole)

    def known(*arrays):
        return step(*arrays, settings=SETTINGS._replace(replicated=True))

    assert not is_by_kernel(step, *arrays)
    compiled = jax.jit(known, out_shardings=whole).lower(*arrays).compile().as_text()
    assert "rx_adam" in compiled
    assert not re.search("all-gather|all-reduce|collective|dynamic-slice", compiled)
    news = jax.jit(known, out_shardings=whole)(*arrays)
    for one in news:
        np.testing.assert_array_equal(*(part.data for part in one.addressable_shards))
    close(list(map(np.asarray, news)), numbers(formula, *map(np.asarray, arrays)))


def test_programs_that_are_exported_are_without_it():
    assert "rx_adam" not in jax.export.export(jax.jit(step))(*drawn(SQUARES), RATE).mlir_module()
