"""One model under each strategy: the same accuracy, not the same speed; and a picture of both.

    python examples/compare_strategies.py --replicas 4 --epochs 10  # needs the extra `report`

`replicax compare` does this thoroughly: warm-up, repetitions, spread, several processes. This is a
plain program to change as you like.
"""

from __future__ import annotations

import argparse
import time

import matplotlib
import numpy as np
from sklearn.datasets import load_digits

import replicax.tf as tf

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def make_model():
    model = tf.keras.Sequential(
        [
            tf.keras.Input((8, 8, 1)),
            tf.keras.layers.Conv2D(32, 3, activation="relu"),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(10),
        ]
    )
    model.compile(
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=tf.keras.optimizers.Adam(2e-3),
        metrics=["accuracy"],
    )
    return model


class Seconds(tf.keras.callbacks.Callback):
    """How long each epoch takes."""

    def __init__(self):
        super().__init__()
        self.epochs = []

    def on_epoch_begin(self, epoch, logs=None):
        self.start = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        self.epochs.append(time.perf_counter() - self.start)


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare strategies on handwritten digits.")
    parser.add_argument("--replicas", type=int, default=2, help="virtual CPU devices to make")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64, help="rows over all replicas")
    parser.add_argument("--picture", default="compare_strategies.png", help="where to draw it")
    arguments = parser.parse_args()

    (cpu, *_) = tf.config.list_physical_devices("CPU")
    parts = [tf.config.LogicalDeviceConfiguration() for _ in range(arguments.replicas)]
    tf.config.set_logical_device_configuration(cpu, parts)
    digits = load_digits()
    images, labels = (digits.images[..., None] / 16).astype("float32"), digits.target
    order = np.random.default_rng(0).permutation(len(images))
    images, labels = images[order], labels[order]

    strategies = {
        "default": tf.distribute.get_strategy(),
        "OneDevice": tf.distribute.OneDeviceStrategy("/cpu:0"),
        "Mirrored": tf.distribute.MirroredStrategy(),
        "CentralStorage": tf.distribute.experimental.CentralStorageStrategy(),
    }
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
    speeds = {}
    for (name, strategy), marker in zip(strategies.items(), "o+x.", strict=True):
        tf.keras.utils.set_random_seed(0)
        with strategy.scope():
            model = make_model()
        seconds = Seconds()
        history = model.fit(
            images[:1500],
            labels[:1500],
            batch_size=arguments.batch_size,
            epochs=arguments.epochs,
            validation_data=(images[1500:], labels[1500:]),
            callbacks=[seconds],
            verbose=0,
        )
        accuracies = history.history["val_accuracy"]
        # The first epoch compiles.
        speeds[name] = 1500 / min(seconds.epochs[1:] or seconds.epochs)
        print(
            f"{name}: {strategy.num_replicas_in_sync} replicas, accuracy {accuracies[-1]:.4f}, "
            f"first epoch {seconds.epochs[0]:.1f} s, then {speeds[name]:,.0f} rows per second"
        )
        left.plot(range(1, arguments.epochs + 1), accuracies, marker=marker, label=name)
    left.set(xlabel="epoch", ylabel="accuracy on test images")
    left.legend()
    right.bar(list(speeds), list(speeds.values()))
    right.set(ylabel="rows per second, validation included")
    right.tick_params(axis="x", rotation=20)
    figure.savefig(arguments.picture, dpi=120, bbox_inches="tight")
    print(f"drawn: {arguments.picture}; virtual devices share the cores of this machine")


if __name__ == "__main__":
    main()
