"""A text classifier: embedding and one transformer block, as in Keras' example, without dropout.

Dropout would draw other numbers on each side, and the losses could not be compared. Nor could those
of Adam: Keras 3 on TensorFlow squares the gradient of each occurrence of a word by itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ._workload import Weights, Workload

VOCABULARY, LENGTH, WIDTH, HEADS, CLASSES = 20_000, 200, 32, 2, 2
EPSILON = 1e-6


def draw(rows: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    inputs = random.integers(0, VOCABULARY, (rows, LENGTH)).astype("int32")
    return inputs, random.integers(0, CLASSES, rows).astype("int32")


def weights() -> Weights:
    found = Weights()
    found.table("tokens", VOCABULARY, WIDTH)
    found.table("positions", LENGTH, WIDTH)
    attention = []
    for _ in "query", "key", "value":
        attention.append(found.kernel(WIDTH, HEADS, WIDTH, fan_in=2 * WIDTH))
        attention.append(np.zeros((HEADS, WIDTH), np.float32))
    attention.append(found.kernel(HEADS, WIDTH, WIDTH, fan_in=2 * HEADS * WIDTH))
    found.trainable["attention"] = [*attention, np.zeros(WIDTH, np.float32)]
    found.normalization("norm1", WIDTH, statistics=False)
    found.dense("wide", WIDTH, WIDTH)
    found.dense("narrow", WIDTH, WIDTH)
    found.normalization("norm2", WIDTH, statistics=False)
    found.dense("hidden", WIDTH, 20)
    found.dense("head", 20, CLASSES)
    return found


def model(keras: Any, layers: Any) -> Any:
    class Positions(layers.Layer):
        """Adds a row for each place."""

        def build(self, shape: Any) -> None:
            self.table = self.add_weight(name="table", shape=shape[1:], initializer="zeros")

        def call(self, x: Any) -> Any:
            return x + self.table

    inputs = keras.Input((LENGTH,), dtype="int32")
    x = Positions(name="positions")(layers.Embedding(VOCABULARY, WIDTH, name="tokens")(inputs))
    attended = layers.MultiHeadAttention(HEADS, WIDTH, name="attention")(x, x)
    x = layers.LayerNormalization(epsilon=EPSILON, name="norm1")(layers.Add()([x, attended]))
    y = layers.Dense(WIDTH, activation="relu", name="wide")(x)
    y = layers.Dense(WIDTH, name="narrow")(y)
    x = layers.LayerNormalization(epsilon=EPSILON, name="norm2")(layers.Add()([x, y]))
    x = layers.GlobalAveragePooling1D()(x)
    x = layers.Dense(20, activation="relu", name="hidden")(x)
    return keras.Model(inputs, layers.Dense(CLASSES, name="head")(x))


def forward(weights: dict, statistics: dict, x: Any, axis: str | None) -> tuple[Any, dict]:
    import jax
    import jax.numpy as jnp

    def dense(name: str, x: Any) -> Any:
        kernel, bias = weights[name]
        return x @ kernel + bias

    def normalized(name: str, x: Any) -> Any:
        scale, offset = weights[name]
        centred = x - x.mean(-1, keepdims=True)
        variance = (centred * centred).mean(-1, keepdims=True)
        return centred * jax.lax.rsqrt(variance + EPSILON) * scale + offset

    (tokens,), (positions,) = weights["tokens"], weights["positions"]
    x = tokens[x] + positions
    *projections, out, bias = weights["attention"]
    query, key, value = (
        jnp.einsum("btd,dhk->bthk", x, kernel) + offset
        for kernel, offset in zip(projections[::2], projections[1::2], strict=True)
    )
    scores = jax.nn.softmax(jnp.einsum("bqhk,bthk->bhqt", query * WIDTH**-0.5, key))
    mixed = jnp.einsum("bhqt,bthk->bqhk", scores, value)
    x = normalized("norm1", x + jnp.einsum("bqhk,hkd->bqd", mixed, out) + bias)
    x = normalized("norm2", x + dense("narrow", jax.nn.relu(dense("wide", x)))).mean(1)
    return dense("head", jax.nn.relu(dense("hidden", x))), statistics


WORKLOAD = Workload(
    "text",
    "text",
    64,
    6,
    draw,
    weights,
    model,
    forward,
    "SGD",
    {"learning_rate": 0.05, "momentum": 0.9},
)
