"""Memory of a GPU: it does not grow, steps reuse it, and a program that wants too much is told."""

from __future__ import annotations

import functools
import gc

import keras
import numpy as np
import pytest

import replicax as rx

from .cases import BATCH, DEVICE, GPUS, LABELS, NUMBERS, STRATEGIES, compiled
from fitting import made

MEGA = 2**20


def in_use(device):
    gc.collect()
    return device.memory_stats()["bytes_in_use"]


def test_many_fits_take_no_more_memory_than_a_few(gpu):
    model = made(rx.OneDeviceStrategy(DEVICE), functools.partial(compiled, "mlp"))

    def fits(count):
        for _ in range(count):
            model.fit(NUMBERS, LABELS, batch_size=BATCH, verbose=0)
        return in_use(gpu)

    few = fits(10)
    assert fits(200) <= few + MEGA / 16


@pytest.mark.parametrize("strategy", ["one_device", "mirrored", "central_storage"])
def test_strategies_give_back_what_they_took(strategy, gpu):
    def used(count):
        for _ in range(count):
            model = made(STRATEGIES[strategy](), functools.partial(compiled, "mlp"))
            model.fit(NUMBERS, LABELS, batch_size=BATCH, verbose=0)
            del model
            keras.backend.clear_session()
        return in_use(gpu)

    few = used(3)
    assert used(20) <= few + MEGA / 4


def wide(width=8192, rows=64):
    """A model of three square kernels, 256 MiB each, and a batch for it."""
    layers = keras.layers
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [keras.Input((width,)), *(layers.Dense(width, use_bias=False) for _ in range(3))]
    )
    model.compile(keras.optimizers.SGD(1e-3, momentum=0.9), "mse")
    return model, np.ones((4 * rows, width), "float32")


def test_a_step_takes_its_arguments_memory_again(gpu):
    """Weights, momentum and gradients are there once: no step makes a second copy of a weight."""
    before = gpu.memory_stats()["peak_bytes_in_use"]
    with rx.OneDeviceStrategy(DEVICE).scope():
        model, rows = wide()
    model.fit(rows, rows, batch_size=64, epochs=2, verbose=0)
    peak = gpu.memory_stats()["peak_bytes_in_use"]
    kernels = sum(int(np.prod(v.shape)) * 4 for v in model.trainable_variables)
    # weights, momentum, and gradients that are added to both at once or wait for each other
    assert kernels * 2 < peak - before * 0 <= kernels * 3.3, (peak / MEGA, kernels / MEGA)


def test_a_model_that_does_not_fit_says_what_to_try(gpu):
    limit = gpu.memory_stats()["bytes_limit"]
    width = int((limit / 4 / 3) ** 0.5) // 128 * 128  # three kernels fill it, their momentum not
    with pytest.raises(rx.errors.ReplicaxError) as caught:
        with rx.OneDeviceStrategy(DEVICE).scope():
            model, rows = wide(width, 8)
        model.fit(rows, rows, batch_size=8, verbose=0)
    print(caught.value)
    assert "memory" in str(caught.value)
    gc.collect()
    again = made(rx.OneDeviceStrategy(DEVICE), functools.partial(compiled, "mlp"))
    again.fit(NUMBERS, LABELS, batch_size=BATCH, verbose=0)
