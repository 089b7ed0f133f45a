"""Training steps that the guards look at: each takes a number of replicas and returns a step.

A step that is given two functions calls them at the begin and at the end of one steady batch.
"""

from __future__ import annotations

from collections.abc import Callable

import keras
import numpy as np

import replicax as rx

Step = Callable[..., object]


def strategy_of(replicas: int) -> rx.Strategy:
    if replicas == 1:
        return rx.OneDeviceStrategy("CPU:0")
    return rx.MirroredStrategy([f"CPU:{number}" for number in range(replicas)])


def rows(*shape: int, below: int = 0) -> np.ndarray:
    draw = np.random.default_rng(0)
    if below:
        return draw.integers(0, below, shape).astype("int32")
    return draw.normal(size=shape).astype("float32")


def nothing() -> None:
    pass


class _AtBatch(keras.callbacks.Callback):
    """Calls one function when a batch begins, and another when the next one does."""

    def __init__(self, begin: Callable[[], object], end: Callable[[], object]) -> None:
        super().__init__()
        self._calls = {5: begin, 6: end}

    def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
        self._calls.get(batch, nothing)()


def fitted(replicas: int, layers: list, x: np.ndarray, y: np.ndarray) -> Step:
    """Return a step that fits a model of these layers for some batches."""
    with strategy_of(replicas).scope():
        model = keras.Sequential([keras.Input(x.shape[1:], dtype=x.dtype), *layers])
        model.compile("adam", "mse")

    def step(begin: Callable[[], object] = nothing, end: Callable[[], object] = nothing) -> None:
        model.fit(x, y, batch_size=8, shuffle=False, verbose=0, callbacks=[_AtBatch(begin, end)])

    return step


def mlp(replicas: int) -> Step:
    layers = [keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1)]
    return fitted(replicas, layers, rows(64, 4), rows(64, 1))


def cnn(replicas: int) -> Step:
    layers = [
        keras.layers.Conv2D(4, 3, padding="same"),
        keras.layers.BatchNormalization(),
        keras.layers.ReLU(),
        keras.layers.MaxPooling2D(),
        keras.layers.Flatten(),
        keras.layers.Dense(1),
    ]
    return fitted(replicas, layers, rows(64, 8, 8, 3), rows(64, 1))


def embedding(replicas: int) -> Step:
    layers = [keras.layers.Embedding(50, 4), keras.layers.Flatten(), keras.layers.Dense(1)]
    return fitted(replicas, layers, rows(64, 3, below=50), rows(64, 1))


def run(replicas: int) -> Step:
    """Return one `Strategy.run` of a custom loop: loss, gradients, update."""
    strategy = strategy_of(replicas)
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8), keras.layers.Dense(1)])
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build(model.trainable_variables)

    def loss_of(x: object, y: object) -> object:
        return keras.ops.mean(keras.ops.square(model(x, training=True) - y))

    def train(batch: tuple) -> object:
        loss, gradients = rx.value_and_grad(loss_of, model.trainable_variables)(*batch)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    (batch,) = strategy.experimental_distribute_dataset([(rows(8, 4), rows(8, 1))])

    def step(begin: Callable[[], object] = nothing, end: Callable[[], object] = nothing) -> None:
        begin()
        strategy.run(train, args=(batch,))
        end()

    return step


STEPS: dict[str, Callable[[int], Step]] = {
    "mlp": mlp,
    "cnn": cnn,
    "embedding": embedding,
    "run": run,
    "fit": mlp,
}
