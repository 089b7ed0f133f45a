"""Attention on CPUs is what JAX's own is, and so are its gradients."""

from __future__ import annotations

import inspect

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
from replicax._keras import operations

operations.install()


def gradients(arrays, weights, **options):
    """The result and its gradients, in a program of its own."""

    def total(arrays):
        result = keras.ops.dot_product_attention(*arrays, **options)
        return (result * weights).sum(), result

    return jax.jit(jax.value_and_grad(total, has_aux=True))(arrays)


def both(arrays, **options):
    """As computed here, and as JAX computes it."""
    weights = np.random.default_rng(9).normal(size=arrays[0].shape).astype("float32")
    with rx.config.cpu_tuning(True):
        ours = gradients(arrays, weights, **options)
    with rx.config.cpu_tuning(False):
        return ours, gradients(arrays, weights, **options)


def close(ours, stock):
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-5), ours, stock)


def configuration(seed):
    """Random lengths, with and without bias, mask, causality and a scale of one's own."""
    rng = np.random.default_rng(seed)
    rows, queries, keys, heads, width = map(int, rng.integers(1, 8, 5))
    shapes = [(rows, queries, heads, width), *[(rows, keys, heads, width)] * 2]
    arrays = [rng.normal(size=shape).astype("float32") for shape in shapes]
    options = {"is_causal": seed % 2 == 1}
    if seed % 3 == 0:
        options["scale"] = 0.3
    pairs = (int(rng.choice([1, rows])), int(rng.choice([1, heads])), queries, keys)
    if seed % 3 < 2:
        options["mask"] = rng.random(pairs) < 0.6  # leaves some positions nothing to see
    if seed % 4 < 2:
        options["bias"] = rng.normal(size=pairs).astype("float32")
    return arrays, options


@pytest.mark.parametrize("seed", range(12))
def test_random_configurations(seed):
    arrays, options = configuration(seed)
    assert operations.covers(*arrays)
    close(*both(arrays, **options))


@pytest.mark.parametrize("is_causal", [False, True])
def test_sixteen_bits_are_computed_in_thirty_two(is_causal):
    arrays, _ = configuration(0)
    query, key, value = (jnp.asarray(array, "bfloat16") for array in arrays[:3])
    wide = [array.astype("float32") for array in (query, key, value)]
    expected = jax.nn.dot_product_attention(*wide, is_causal=is_causal)
    with rx.config.cpu_tuning(True):
        found = keras.ops.dot_product_attention(query, key, value, is_causal=is_causal)
    assert found.dtype == "bfloat16"
    np.testing.assert_allclose(found.astype("float32"), expected, rtol=2**-8, atol=1e-6)


def test_large_products_do_not_overflow():
    arrays = [np.full((1, 3, 1, 4), 40, np.float32) for _ in range(3)]
    ours, _ = both(arrays, scale=1.0)
    np.testing.assert_allclose(ours[0][1], arrays[2])  # the mean of equal values


@pytest.mark.parametrize(
    ("heads", "dtype"),
    [(2, "float32"), (4, "float16")],
)
def test_what_stays_with_jax(heads, dtype):
    query, key = (jnp.ones((2, 3, count, 4), dtype) for count in (4, heads))
    with rx.config.cpu_tuning(True):
        assert not operations.covers(query, key, key)
        result = keras.ops.dot_product_attention(query, key, key)
    np.testing.assert_allclose(np.asarray(result, float), np.ones(query.shape), rtol=1e-2)


def test_nothing_to_look_at_gives_zeros():
    query, key = jnp.ones((2, 3, 1, 4)), jnp.ones((2, 0, 1, 4))
    with rx.config.cpu_tuning(True):
        result = keras.ops.dot_product_attention(query, key, key)
    np.testing.assert_array_equal(result, np.zeros(query.shape))


@pytest.mark.parametrize(
    ("rows", "options"),
    [
        (2, {"bias": np.zeros((4, 1, 3, 3), "float32")}),
        (2, {"bias": np.zeros((1, 1, 6, 3), "float32")}),
        (2, {"mask": np.ones((2, 1, 3, 2), bool)}),
    ],
)
def test_shapes_that_do_not_fit_are_refused_by_jax(rows, options):
    query, key = jnp.ones((2, 3, 1, 4)), jnp.ones((rows, 3, 1, 4))
    with rx.config.cpu_tuning(True):
        assert not operations.covers(query, key, key, **options)
        with pytest.raises((ValueError, TypeError)):
            keras.ops.dot_product_attention(query, key, key, **options)


def test_only_programs_for_cpus_change():
    x = np.ones((2, 3, 1, 4), np.float32)
    with rx.config.cpu_tuning(True):
        texts = {
            platform: jax.jit(lambda x: keras.ops.dot_product_attention(x, x, x))
            .trace(x)
            .lower(lowering_platforms=(platform,))
            .as_text()
            for platform in ("cpu", "cuda", "tpu")
        }
    barrier = "optimization_barrier"  # JAX's own attention has none
    assert {name for name, text in texts.items() if barrier in text} == {"cpu"}


def test_the_function_keeps_its_name_and_arguments():
    first = list(inspect.signature(keras.ops.dot_product_attention).parameters)[:5]
    assert first == ["query", "key", "value", "bias", "mask"]


@pytest.mark.parametrize("devices", [1, 2])
def test_keras_layers_use_it(devices):
    def trained():
        keras.utils.set_random_seed(0)
        with rx.MirroredStrategy([f"CPU:{number}" for number in range(devices)]).scope():
            inputs = keras.Input((5, 4))
            mixed = keras.layers.MultiHeadAttention(2, 3)(inputs, inputs, use_causal_mask=True)
            model = keras.Model(inputs, keras.layers.Dense(1)(mixed))
            model.compile("sgd", "mse")
        rng = np.random.default_rng(0)
        x, y = rng.normal(size=(12, 5, 4)), rng.normal(size=(12, 5, 1))
        model.fit(x, y, batch_size=4, verbose=0, shuffle=False)
        return np.concatenate([weight.ravel() for weight in model.get_weights()])

    with rx.config.cpu_tuning(False):
        stock = trained()
    np.testing.assert_allclose(trained(), stock, rtol=1e-4, atol=1e-5)
