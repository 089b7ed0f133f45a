"""A custom training loop: a distributed data set, `run`, `reduce`, metrics, one compiled step.

    python examples/custom_loop.py --replicas 4  # needs the extra `report`

The step is written for one replica. `rx.function` makes one program of the whole step: forward
and backward pass on every replica, the sum of the gradients, the update, the reduced loss.
"""

from __future__ import annotations

import argparse
import time

import replicax as rx  # isort: skip  (before Keras: it chooses the JAX backend)
import keras
import numpy as np
from sklearn.datasets import load_digits


def batches_of(x: np.ndarray, y: np.ndarray, rows: int) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(x[i : i + rows], y[i : i + rows]) for i in range(0, len(x), rows)]


def main() -> None:
    parser = argparse.ArgumentParser(description="Train on handwritten digits, step by step.")
    parser.add_argument("--replicas", type=int, default=2, help="virtual CPU devices to make")
    parser.add_argument("--batch-size", type=int, default=60, help="rows over all replicas")
    parser.add_argument("--epochs", type=int, default=4)
    arguments = parser.parse_args()

    rx.testing.virtual_devices(arguments.replicas)  # before anything else uses JAX
    keras.utils.set_random_seed(0)
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.data))
    x, y = (digits.data[order] / 16).astype("float32"), digits.target[order]

    strategy = rx.MirroredStrategy()
    print(strategy)
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(64, "relu"), keras.layers.Dense(10)])
        optimizer = keras.optimizers.Adam(3e-3)
        accuracy = keras.metrics.SparseCategoricalAccuracy()
    per_example = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def replica_step(batch, rows):
        x, y = batch

        def loss_of():
            logits = model(x, training=True)
            return rx.nn.compute_average_loss(
                per_example(y, logits), global_batch_size=rows
            ), logits

        (loss, logits), gradients = rx.value_and_grad(loss_of, model, has_aux=True)()
        optimizer.apply(gradients, model.trainable_variables)  # sums them over the replicas
        accuracy.update_state(y, logits)
        return loss

    @rx.function
    def train_step(batch, rows):
        losses = strategy.run(replica_step, args=(batch, rows))
        return strategy.reduce("SUM", losses, axis=None)

    @rx.function
    def test_step(batch):
        def replica_test(batch):
            x, y = batch
            accuracy.update_state(y, model(x))

        strategy.run(replica_test, args=(batch,))

    training = batches_of(x[:1500], y[:1500], arguments.batch_size)
    testing = batches_of(x[1500:], y[1500:], arguments.batch_size)
    # Rows of each batch as arrays: a Python number would be part of the compiled program.
    rows = [np.float32(len(x)) for x, _ in training]
    for epoch in range(arguments.epochs):
        accuracy.reset_state()
        start, total = time.perf_counter(), 0.0
        data = strategy.experimental_distribute_dataset(training)
        for batch, count in zip(data, rows, strict=True):
            total += float(train_step(batch, count)) * count
        seconds = time.perf_counter() - start
        print(
            f"epoch {epoch + 1}: loss {total / sum(rows):.4f}, "
            f"accuracy {float(accuracy.result()):.4f}, {seconds:.1f} s"
        )
    accuracy.reset_state()
    for batch in strategy.experimental_distribute_dataset(testing):
        test_step(batch)
    print(f"test: accuracy {float(accuracy.result()):.4f}")


if __name__ == "__main__":
    main()
