"""A click-through model: 26 tables of categories, 13 numbers, and dense layers on both."""

from __future__ import annotations

from typing import Any

import numpy as np

from ._workload import Weights, Workload

NUMBERS, WIDTH = 13, 16  # as in Criteo's data; of a table's row
SIZES = tuple(int(size) for size in np.geomspace(100, 100_000, 26))


def draw(rows: int, random: np.random.Generator) -> tuple[dict[str, np.ndarray], np.ndarray]:
    # Few ids are frequent: the square of a uniform number.
    shares = random.random((rows, len(SIZES)), np.float32) ** 2
    inputs = {
        "ids": (shares * np.array(SIZES, np.float32)).astype("int32"),
        "numbers": random.standard_normal((rows, NUMBERS), np.float32),
    }
    return inputs, random.integers(0, 2, (rows, 1)).astype("float32")


def weights() -> Weights:
    found = Weights()
    for number, size in enumerate(SIZES):
        found.table(f"table{number}", size, WIDTH)
    found.dense("bottom1", NUMBERS, 64)
    found.dense("bottom2", 64, WIDTH)
    found.dense("top1", WIDTH * (len(SIZES) + 1), 256)
    found.dense("top2", 256, 64)
    found.dense("head", 64, 1)
    return found


def model(keras: Any, layers: Any) -> Any:
    ids = keras.Input((len(SIZES),), dtype="int32", name="ids")
    numbers = keras.Input((NUMBERS,), name="numbers")
    rows = [
        layers.Embedding(size, WIDTH, name=f"table{number}")(ids[:, number])
        for number, size in enumerate(SIZES)
    ]
    x = layers.Dense(64, activation="relu", name="bottom1")(numbers)
    x = layers.Dense(WIDTH, activation="relu", name="bottom2")(x)
    x = layers.Concatenate()([*rows, x])
    x = layers.Dense(256, activation="relu", name="top1")(x)
    x = layers.Dense(64, activation="relu", name="top2")(x)
    return keras.Model({"ids": ids, "numbers": numbers}, layers.Dense(1, name="head")(x))


def forward(weights: dict, statistics: dict, x: Any, axis: str | None) -> tuple[Any, dict]:
    import jax
    import jax.numpy as jnp

    def dense(name: str, x: Any) -> Any:
        kernel, bias = weights[name]
        return x @ kernel + bias

    ids, numbers = x["ids"], x["numbers"]
    rows = [weights[f"table{number}"][0][ids[:, number]] for number in range(len(SIZES))]
    bottom = jax.nn.relu(dense("bottom2", jax.nn.relu(dense("bottom1", numbers))))
    x = jnp.concatenate([*rows, bottom], axis=1)
    x = jax.nn.relu(dense("top2", jax.nn.relu(dense("top1", x))))
    return dense("head", x), statistics


WORKLOAD = Workload(
    "clicks",
    "click-through",
    1024,
    20,
    draw,
    weights,
    model,
    forward,
    "SGD",
    {"learning_rate": 0.1},
    binary=True,
)
