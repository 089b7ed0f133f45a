"""TF32, `bfloat16` and `float16` stay within their digits; losses of `float16` are scaled."""

from itertools import product

import jax
import keras
import numpy as np
import pytest

import replicax as rx

from .cases import DEVICE, GPUS, MODELS, STRATEGIES, trained
from .test_training import on_cpu
from fitting import weight_difference

# Half a unit in the last place: TF32 and float16 have 10 bits behind the point, bfloat16 has 7.
# Errors of a sum of products grow with its length, so the bounds are a few of these.
TF32, BFLOAT16 = 2.0**-11, 2.0**-8


@pytest.fixture
def policy(request):
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(request.param)
    with jax.default_matmul_precision("default"):
        yield request.param
    keras.config.set_dtype_policy(before)


@pytest.mark.parametrize("name", MODELS if GPUS else ["mlp"])
def test_tf32_is_near_float32(name):
    with jax.default_matmul_precision("default"):
        weights, told = trained(rx.OneDeviceStrategy(DEVICE), name)
    expected, expected_told = on_cpu(name)
    assert weight_difference(weights, expected) <= 16 * TF32
    np.testing.assert_allclose(
        told["history"]["loss"], expected_told["history"]["loss"], rtol=4 * TF32
    )


@pytest.mark.parametrize(
    ("name", "strategy", "policy"),
    [
        *product(
            ("mlp", "convolutions", "attention"),
            ("one_device", "mirrored", "central_storage"),
            ("mixed_bfloat16", "mixed_float16"),
        )
    ]
    if GPUS
    else [("mlp", "mirrored", "mixed_bfloat16"), ("mlp", "central_storage", "mixed_float16")],
    indirect=["policy"],
)
def test_mixed_precision_is_near_float32(name, strategy, policy):
    weights, told = trained(STRATEGIES[strategy](), name)
    assert all(np.isfinite(value).all() for value in weights)
    assert {value.dtype.name for value in weights if value.ndim > 1} == {"float32"}
    losses, expected = told["history"]["loss"], on_cpu(name)[1]["history"]["loss"]
    np.testing.assert_allclose(losses, expected, rtol=16 * BFLOAT16)


@pytest.mark.parametrize("policy", ["mixed_float16"], indirect=True)
def test_an_overflow_lowers_the_scale_and_leaves_the_weights(policy):
    with rx.OneDeviceStrategy(DEVICE).scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
        model.optimizer.build(model.trainable_variables)
    before = model.get_weights()
    scale = float(model.optimizer.dynamic_scale.numpy())
    rows = np.full((8, 4), 3e4, "float32")  # their gradient is beyond 65504
    model.fit(rows, np.zeros((8, 1), "float32"), batch_size=8, verbose=0)
    assert float(model.optimizer.dynamic_scale.numpy()) == scale / 2
    for value, old in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(value, old)
