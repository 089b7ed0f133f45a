"""Train on handwritten digits with `fit`, under any strategy.

    python examples/fit_mirrored.py  # needs the extra `report`
    python examples/fit_mirrored.py --strategy central_storage --replicas 4 --batch-size 50

Only the line that makes the strategy differs. With the same seed all of them print the same
losses, up to rounding, even when the replicas do not divide the batch.
"""

from __future__ import annotations

import argparse

import replicax as rx  # isort: skip  (before Keras: it chooses the JAX backend)
import keras
import numpy as np
from sklearn.datasets import load_digits

STRATEGIES = ("default", "one_device", "mirrored", "central_storage")


def make_strategy(name: str) -> rx.Strategy:
    if name == "mirrored":
        return rx.MirroredStrategy()
    if name == "central_storage":
        return rx.CentralStorageStrategy()
    if name == "one_device":
        return rx.OneDeviceStrategy("CPU:0")
    return rx.get_strategy()  # outside every scope: the default strategy


def make_model() -> keras.Model:
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, activation="relu"),
            keras.layers.BatchNormalization(momentum=0.9),  # 72 steps: too few for 0.99
            keras.layers.Flatten(),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(10),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(1e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on handwritten digits with `fit`.")
    parser.add_argument("--strategy", choices=STRATEGIES, default="mirrored")
    parser.add_argument("--replicas", type=int, default=2, help="virtual CPU devices to make")
    parser.add_argument("--batch-size", type=int, default=64, help="rows over all replicas")
    parser.add_argument("--epochs", type=int, default=3)
    arguments = parser.parse_args()

    rx.testing.virtual_devices(arguments.replicas)  # before anything else uses JAX
    keras.utils.set_random_seed(0)
    digits = load_digits()
    x, y = (digits.images[..., None] / 16).astype("float32"), digits.target
    order = np.random.default_rng(0).permutation(len(x))
    x, y = x[order], y[order]

    strategy = make_strategy(arguments.strategy)
    print(strategy)
    with strategy.scope():
        model = make_model()
    model.fit(
        x[:1500],
        y[:1500],
        batch_size=arguments.batch_size,
        epochs=arguments.epochs,
        callbacks=[rx.callbacks.AssertFinite(every=10)],
        verbose=2,
    )
    loss, accuracy = model.evaluate(x[1500:], y[1500:], verbose=0)
    print(f"test: loss {loss:.4f}, accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
