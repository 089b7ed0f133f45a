"""Memory of a GPU does not grow, and steps take the memory of their arguments again."""

import functools
import gc

import keras
import pytest

import replicax as rx

from .cases import BATCH, DEVICE, LABELS, NUMBERS, STRATEGIES, compiled
from fitting import made
from helpers import run_python

MEGA = 2**20


def line():
    model = keras.Sequential([keras.Input((20,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.01), "mse")
    return model


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
            model = made(STRATEGIES[strategy](), line)
            model.fit(NUMBERS, LABELS, batch_size=BATCH, verbose=0)
            del model
            keras.backend.clear_session()
        return in_use(gpu)

    few = used(3)
    assert used(20) <= few + MEGA / 4


PEAK = """
import replicax as rx
import jax, keras, numpy as np
width = 8192  # three kernels of 256 MiB
with rx.OneDeviceStrategy("GPU:0").scope():
    layers = [keras.layers.Dense(width, use_bias=False, kernel_initializer="zeros") for _ in "abc"]
    model = keras.Sequential([keras.Input((width,)), *layers])
    model.compile(keras.optimizers.SGD(1e-3, momentum=0.9), "mse")
rows = np.ones((256, width), "float32")
model.fit(rows, rows, batch_size=64, epochs=2, verbose=0)
kernels = sum(4 * np.prod(v.shape) for v in model.trainable_variables)
print(jax.devices()[0].memory_stats()["peak_bytes_in_use"] / kernels)
"""


def test_a_step_takes_its_arguments_memory_again(gpu):
    """Weights, momentum and gradients are there once: no step makes a second copy of a weight."""
    assert 2 < float(run_python(PEAK).split()[-1]) <= 3.3
