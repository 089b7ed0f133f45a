"""Models whose checkpoints TensorFlow has written, made of whichever Keras is given."""

from __future__ import annotations

from typing import Any

import numpy as np

INPUTS = np.linspace(-1, 1, 12, dtype="float32").reshape(4, 3)
TARGETS = np.linspace(0, 1, 4, dtype="float32").reshape(4, 1)
TOKENS = np.arange(8, dtype="int32").reshape(2, 4) % 5


def functional(keras: Any) -> Any:
    """Layers in two branches, one of them without weights, and a model as a layer."""
    layers = keras.layers
    first = keras.Input((3,))
    inner = keras.Sequential([keras.Input((4,)), layers.Dense(4, activation="tanh")])
    left = layers.Dense(4)(first)
    right = layers.BatchNormalization()(layers.Dense(4, use_bias=False)(first))
    joined = layers.Dropout(0.0)(layers.Add()([left, inner(right)]))
    return keras.Model(first, layers.Dense(1)(joined))


def sequential(keras: Any, *, built: bool = True) -> Any:
    """A plain stack, which need not be built."""
    model = keras.Sequential(
        [keras.layers.Dense(3, activation="relu"), keras.layers.Dropout(0.0), keras.layers.Dense(1)]
    )
    if built:
        model.build((None, 3))
    return model


def subclassed(keras: Any) -> Any:
    """A model with attributes, a list and a dict of layers; it is built when it is called."""

    class Reader(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = keras.layers.Embedding(5, 4)
            self.attention = keras.layers.MultiHeadAttention(2, 2)
            self.blocks = [keras.layers.Dense(4, activation="tanh") for _ in range(2)]
            self.heads = {"mean": keras.layers.LSTM(2)}
            self.both = keras.layers.Bidirectional(keras.layers.GRU(2))

        def call(self, tokens: Any) -> Any:
            x = self.embedding(tokens)
            x = self.attention(x, x)
            for block in self.blocks:
                x = block(x)
            return self.heads["mean"](x) + self.both(x)[:, :2]

    return Reader()


def numbered(weights: list[Any]) -> list[np.ndarray]:
    """Values that tell weights apart, for weights of these shapes."""
    return [
        np.cos(np.arange(w.size) * 0.7 + index).reshape(w.shape).astype(w.dtype) * 0.5 + 0.6
        if w.ndim == 1
        else np.sin(np.arange(w.size) * 0.9 + index).reshape(w.shape).astype(w.dtype)
        for index, w in enumerate(weights)
    ]


def train(model: Any, steps: int) -> None:
    """Make steps, each with all there is."""
    for _ in range(steps):
        model.train_on_batch(INPUTS, TARGETS)
