"""Keras takes cuDNN where the strategy computes on GPUs, whatever else the machine has."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import replicax as rx
from replicax._keras import _compat

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
    strategy = rx.OneDeviceStrategy("CPU:0")
    expected = attended(strategy)
    request.getfixturevalue("on_a_gpu_machine")
    np.testing.assert_array_equal(attended(rx.OneDeviceStrategy("CPU:0")), expected)


def test_closures_of_parameter_servers_leave_cudnn_out(on_a_gpu_machine):
    strategy = rx.ParameterServerStrategy(num_workers=1, num_ps=1, engine="threads")
    try:
        with strategy.scope():
            assert not _compat.jax_rnn._is_gpu_available()
    finally:
        strategy.close()
