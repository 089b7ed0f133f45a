"""A program that needs more memory than the GPU has says what to try, and nothing is lost."""

from __future__ import annotations

import functools

import jax
import keras
import numpy as np
import pytest

import replicax as rx
from replicax._program.explain import WHAT_TO_TRY

from .cases import BATCH, DEVICE, LABELS, NUMBERS, compiled
from fitting import made

pytestmark = pytest.mark.timeout(200)


def wide():
    """Of each row, 65,536 numbers that the gradient needs again."""
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(2**16, activation="relu"), keras.layers.Dense(16)]
    model = keras.Sequential([keras.Input((8,)), *layers])
    model.compile(keras.optimizers.SGD(1e-3, momentum=0.9), "mse")
    return model


def test_a_step_that_needs_too_much_leaves_the_model_as_it_was(gpu):
    """The hidden layer takes all of the memory, and its gradient as much again."""
    rows = gpu.memory_stats()["bytes_limit"] // (4 * 2**16) // 128 * 128
    inputs, targets = np.ones((rows, 8), "float32"), np.ones((rows, 16), "float32")
    model = made(rx.OneDeviceStrategy(DEVICE), wide)
    before = model.get_weights()
    with pytest.raises(jax.errors.JaxRuntimeError, match="RESOURCE_EXHAUSTED") as caught:
        model.fit(inputs, targets, batch_size=rows, verbose=0)
    assert caught.value.__notes__ == [WHAT_TO_TRY]
    for now, then in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(now, then)
    model.fit(inputs[:64], targets[:64], batch_size=64, verbose=0)
    assert not np.array_equal(model.get_weights()[0], before[0])


def test_another_model_trains_after_one_that_did_not_fit(gpu):
    limit = gpu.memory_stats()["bytes_limit"]
    gibibytes, zeros = limit // 2**30, np.zeros(2**28, "float32")
    tables = []
    with (
        rx.OneDeviceStrategy(DEVICE).scope(),
        pytest.raises(jax.errors.JaxRuntimeError, match="RESOURCE_EXHAUSTED"),
    ):
        tables.extend(keras.Variable(zeros) for _ in range(gibibytes + 1))
    tables.clear()
    again = made(rx.OneDeviceStrategy(DEVICE), functools.partial(compiled, "mlp"))
    again.fit(NUMBERS, LABELS, batch_size=BATCH, verbose=0)
