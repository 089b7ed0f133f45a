"""A small CNN for CIFAR-10: two blocks of two convolutions and a max-pool."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._workload import Weights, Workload

SHAPE, CLASSES = (32, 32, 3), 10
CONVOLUTIONS = (("conv1", 3, 32), ("conv2", 32, 32), ("conv3", 32, 64), ("conv4", 64, 64))


def draw(rows: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    inputs = random.random((rows, *SHAPE), np.float32) - np.float32(0.5)
    return inputs, random.integers(0, CLASSES, rows).astype("int32")


def weights() -> Weights:
    found = Weights()
    for name, inputs, filters in CONVOLUTIONS:
        found.convolution(name, 3, inputs, filters, bias=True)
    found.dense("head", 8 * 8 * 64, CLASSES)
    return found


def model(keras: Any, layers: Any) -> Any:
    found = [keras.Input(SHAPE)]
    for name, _, filters in CONVOLUTIONS:
        found.append(layers.Conv2D(filters, 3, padding="same", activation="relu", name=name))
        if name in ("conv2", "conv4"):
            found.append(layers.MaxPooling2D())
    return keras.Sequential([*found, layers.Flatten(), layers.Dense(CLASSES, name="head")])


def forward(weights: dict, statistics: dict, x: Any, axis: str | None) -> tuple[Any, dict]:
    import jax
    from jax import lax

    layout, window = ("NHWC", "HWIO", "NHWC"), (1, 2, 2, 1)
    for name, _, _ in CONVOLUTIONS:
        kernel, bias = weights[name]
        x = lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=layout)
        x = jax.nn.relu(x + bias)
        if name in ("conv2", "conv4"):
            x = lax.reduce_window(x, -np.inf, lax.max, window, window, "VALID")
    kernel, bias = weights["head"]
    return x.reshape(len(x), -1) @ kernel + bias, statistics


WORKLOAD = Workload(
    "cnn", "CNN", 128, 4, draw, weights, model, forward, "Adam", {"learning_rate": 1e-3}
)
