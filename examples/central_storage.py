"""CentralStorageStrategy: variables in one place, computation on all devices.

    python examples/central_storage.py

The program shows where each strategy keeps a weight of the same model, how many copies there are,
and that training gives the same numbers.
"""

from __future__ import annotations

import argparse

import numpy as np

import replicax.tf as tf


def make_model():
    model = tf.keras.Sequential(
        [
            tf.keras.Input((16,)),
            tf.keras.layers.Dense(64, activation="relu"),
            tf.keras.layers.Dense(1),
        ]
    )
    model.compile(optimizer="adam", loss="mse")
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description="Train with variables in one place.")
    parser.add_argument("--replicas", type=int, default=2, help="virtual CPU devices to make")
    parser.add_argument("--epochs", type=int, default=3)
    arguments = parser.parse_args()

    (cpu, *_) = tf.config.list_physical_devices("CPU")
    parts = [tf.config.LogicalDeviceConfiguration() for _ in range(arguments.replicas)]
    tf.config.set_logical_device_configuration(cpu, parts)

    x = np.random.default_rng(0).normal(size=(512, 16)).astype("float32")
    y = np.sin(x.sum(axis=1, keepdims=True))
    losses = {}
    for strategy in (
        tf.distribute.MirroredStrategy(),
        tf.distribute.experimental.CentralStorageStrategy(),
    ):
        name = type(strategy).__name__
        tf.keras.utils.set_random_seed(0)
        with strategy.scope():
            model = make_model()
        kernel = model.trainable_variables[0].value
        places = sorted(str(device) for device in kernel.devices())
        print(f"{name}: {strategy.num_replicas_in_sync} replicas, a weight is on {places}")
        history = model.fit(x, y, batch_size=64, epochs=arguments.epochs, verbose=2)
        losses[name] = history.history["loss"]

    mirrored, central = losses.values()
    print(f"largest difference of a loss: {max(abs(np.subtract(mirrored, central))):.1e}")


if __name__ == "__main__":
    main()
