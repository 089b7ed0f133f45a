"""What the `fit` tests share: a small net, its data, and the distance of two runs."""

import contextlib

import keras
import numpy as np

SAMPLE = np.random.default_rng(1)
ROWS = SAMPLE.normal(size=(27, 4)).astype("float32")
TARGETS = SAMPLE.normal(size=(27, 1)).astype("float32")


def dense_net(**compile_args):
    """Two Dense layers with fixed initial weights."""
    keras.utils.set_random_seed(5)
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(1)]
    )
    model.compile(**{"optimizer": keras.optimizers.SGD(0.1), "loss": "mse", **compile_args})
    return model


def made(strategy, make):
    """What `make` returns, made in the scope of a strategy, or in none."""
    with strategy.scope() if strategy else contextlib.nullcontext():
        return make()


def weight_difference(weights, reference):
    """max |Δw| / max |w|, the largest over the weight tensors.

    Tensors that are all but zero are measured against 0.01: the bias of an attention's keys has
    no gradient but rounding noise.
    """
    pairs = zip(weights, reference, strict=True)
    return max(float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-2)) for a, b in pairs)
