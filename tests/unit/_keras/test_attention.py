"""Operations of Keras' backend: attention on CPUs, and what goes to cuDNN on GPUs."""

from __future__ import annotations

import inspect

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
from replicax._keras import _compat, operations

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


@pytest.mark.parametrize(("heads", "dtype"), [(2, "float32"), (4, "float16")])
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


INPUTS = np.random.default_rng(3).normal(size=(8, 5, 3)).astype("float32")


@pytest.fixture
def on_a_gpu_machine(monkeypatch):
    """Keras believes that JAX computes on GPUs by default."""
    rx.MirroredStrategy(["CPU:0"])  # puts the seam in
    asks = getattr(_compat.jax_rnn, "_is_gpu_available", None)
    if asks is None:
        pytest.skip("this Keras has no LSTM by cuDNN")
    monkeypatch.setattr("jax.default_backend", lambda: "gpu")
    for name, found in (("check_cudnn_version", 91000), ("check_compute_capability", True)):
        monkeypatch.setattr(
            f"jax._src.cudnn.fused_attention_stablehlo.{name}", lambda *_, found=found: found
        )
    assert asks()


def trained(strategy):
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential([keras.Input((5, 3)), keras.layers.LSTM(4), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
    model.fit(INPUTS, INPUTS[:, 0, :1], batch_size=4, verbose=0, shuffle=False)
    step = rx.function(lambda x: strategy.reduce("MEAN", strategy.run(model, args=(x,)), axis=None))
    return [*model.get_weights(), model.predict(INPUTS, verbose=0), np.asarray(step(INPUTS))]


@pytest.fixture(scope="module")
def expected():
    """Of a machine without GPUs."""
    return trained(rx.OneDeviceStrategy("CPU:0"))


@pytest.mark.parametrize("devices", [["CPU:0"], ["CPU:0", "CPU:1"]])
def test_a_strategy_on_the_cpu_trains_an_lstm_beside_a_gpu(expected, on_a_gpu_machine, devices):
    found = trained(rx.MirroredStrategy(devices))
    for value, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(value, other, rtol=1e-5, atol=1e-6)


def attended(strategy):
    """Of attention in 16 bits with heads that cuDNN takes, by the operations of Keras."""
    rows = np.random.default_rng(4).normal(size=(2, 16, 2, 64)).astype("bfloat16")

    def attend(x):
        assert x.dtype == "bfloat16"
        return keras.ops.cast(keras.ops.dot_product_attention(x, x, x), "float32")

    with rx.config.cpu_tuning(False):
        return np.asarray(strategy.run(attend, args=(rows,)))


def test_a_strategy_on_the_cpu_attends_in_16_bits_beside_a_gpu(request):
    expected = attended(rx.OneDeviceStrategy("CPU:0"))
    request.getfixturevalue("on_a_gpu_machine")
    np.testing.assert_array_equal(attended(rx.OneDeviceStrategy("CPU:0")), expected)


def test_closures_of_parameter_servers_leave_cudnn_out(on_a_gpu_machine):
    strategy = rx.ParameterServerStrategy(num_workers=1, num_ps=1, engine="threads")
    try:
        with strategy.scope():
            assert not _compat.jax_rnn._is_gpu_available()
    finally:
        strategy.close()
