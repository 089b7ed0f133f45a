"""An MLP 784-512-512-10."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._workload import Weights, Workload

UNITS = (784, 512, 512, 10)


def draw(rows: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    inputs = random.standard_normal((rows, UNITS[0]), np.float32)
    return inputs, random.integers(0, UNITS[-1], rows).astype("int32")


def weights() -> Weights:
    found = Weights()
    for number in range(1, len(UNITS)):
        found.dense(f"dense{number}", UNITS[number - 1], UNITS[number])
    return found


def model(keras: Any, layers: Any) -> Any:
    return keras.Sequential(
        [
            keras.Input((UNITS[0],)),
            layers.Dense(UNITS[1], activation="relu", name="dense1"),
            layers.Dense(UNITS[2], activation="relu", name="dense2"),
            layers.Dense(UNITS[3], name="dense3"),
        ]
    )


def forward(weights: dict, statistics: dict, x: Any, axis: str | None) -> tuple[Any, dict]:
    import jax

    for name, (kernel, bias) in weights.items():
        x = x @ kernel + bias
        x = x if name == "dense3" else jax.nn.relu(x)
    return x, statistics


WORKLOAD = Workload(
    "mlp", "MLP", 256, 60, draw, weights, model, forward, "Adam", {"learning_rate": 1e-3}
)
