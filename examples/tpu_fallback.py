"""Train a small CNN on a TPU, or on what there is instead: GPUs, or virtual CPU devices.

    python examples/tpu_fallback.py  # needs the extra `report`

On a TPU VM, with `pip install 'replicax[tpu]'`, it takes all chips, and those of the other hosts if
the same command is started there. On a laptop it says that there is no TPU, and takes the CPU.
"""

from __future__ import annotations

import argparse

import replicax as rx  # isort: skip  (before Keras: it chooses the JAX backend)
import keras
from sklearn.datasets import load_digits


def make_model(steps_per_execution: int) -> keras.Model:
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Conv2D(16, 3, padding="same"),
            keras.layers.BatchNormalization(momentum=0.8),  # 60 steps: too few for 0.99
            keras.layers.ReLU(),
            keras.layers.Conv2D(32, 3, strides=2, activation="relu"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(10),
            keras.layers.Activation("linear", dtype="float32"),  # the loss is computed in float32
        ]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(1e-2),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
        steps_per_execution=steps_per_execution,
    )
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small CNN on a TPU, or without one.")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=128, help="rows over all replicas")
    parser.add_argument("--cpu-devices", type=int, default=4, help="virtual ones, without a TPU")
    arguments = parser.parse_args()

    resolver = rx.cluster_resolver.TPUClusterResolver(tpu="auto", fallback=("gpu", "cpu"))
    if not resolver.found:
        rx.testing.virtual_devices(arguments.cpu_devices)
    strategy = rx.TPUStrategy(resolver)  # before anything else uses JAX
    print(strategy)

    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy("mixed_bfloat16")
    digits = load_digits()
    x, y = (digits.images[..., None] / 16).astype("float32"), digits.target
    with strategy.scope():
        model = make_model(steps_per_execution=4)
    model.fit(
        x[:1500],
        y[:1500],
        batch_size=arguments.batch_size,
        epochs=arguments.epochs,
        verbose=2,
    )
    loss, accuracy = model.evaluate(x[1500:], y[1500:], verbose=0)
    print(f"test: loss {loss:.4f}, accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
