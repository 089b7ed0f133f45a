"""Fewer bytes between workers, and what that does to training: one model, several ways.

    python examples/slow_network.py  # needs the extra `report`
    python examples/slow_network.py --epochs 20 --picture slow_network.png

Gradients are compressed on their way, or stay where they are for some steps (local SGD).
Every way begins with the same weights and sees the same batches; the loss on rows that no way has
seen says what it costs.
"""

from __future__ import annotations

import argparse

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import replicax as rx
import replicax.tf as tf

keras = tf.keras
TRAINED = 1408


def ways(every: int) -> dict[str, dict]:
    """The strategy's arguments, by what they are called here."""

    def options(compression: str) -> dict:
        return {
            "communication_options": rx.experimental.CommunicationOptions(compression=compression)
        }

    return {
        "every gradient": {},
        "bf16": options("bf16"),
        "int8": options("int8"),
        f"sync_every={every}": {"sync_every": every},
    }


def losses(arguments: argparse.Namespace, how: dict) -> list[float]:
    """The loss on unseen rows after each epoch."""
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.data))
    x, y = (digits.data[order] / 16).astype("float32"), digits.target[order]
    strategy = rx.MultiWorkerMirroredStrategy(**how)
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.Input((64,)),
                keras.layers.Dense(128, activation="relu"),
                keras.layers.Dense(10),
            ]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(), loss)
    history = model.fit(
        x[:TRAINED],
        y[:TRAINED],
        batch_size=arguments.batch_size,
        epochs=arguments.epochs,
        validation_data=(x[TRAINED:], y[TRAINED:]),
        verbose=0,
    )
    return history.history["val_loss"]


def main() -> None:
    parser = argparse.ArgumentParser(description="Train with fewer bytes between replicas.")
    parser.add_argument("--replicas", type=int, default=4, help="virtual CPU devices to make")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32, help="of all replicas together")
    parser.add_argument("--every", type=int, default=11, help="steps that a replica takes alone")
    parser.add_argument("--picture", help="draw the losses into this file")
    arguments = parser.parse_args()

    rx.testing.virtual_devices(arguments.replicas)
    found = {name: losses(arguments, how) for name, how in ways(arguments.every).items()}
    print(f"{'loss on unseen rows':20}  first epoch  last epoch")
    for name, each in found.items():
        print(f"{name:20}  {each[0]:11.3f}  {each[-1]:10.3f}")
    if arguments.picture:
        for name, each in found.items():
            plt.plot(range(1, len(each) + 1), each, label=name)
        plt.yscale("log")
        plt.xlabel("epoch")
        plt.ylabel("loss on unseen rows")
        plt.legend()
        plt.savefig(arguments.picture)


if __name__ == "__main__":
    main()
