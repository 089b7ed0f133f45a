"""Training from TFRecord files: who reads what, a stop in the middle, an exact resume.

    python examples/input_pipeline.py --stop-after 40  # needs the extras `data` and `report`

The program writes handwritten digits into TFRecord files and trains on them twice. The first run is
not interrupted. The second one stops in the middle of an epoch and saves the model and the position
in the data; a new model, a new data set and a strategy with another number of replicas continue
there. Both runs must see the same rows in the same order, and their weights may differ by rounding
only.
"""

from __future__ import annotations

import argparse
import itertools
import pathlib
import pickle
import tempfile

import replicax as rx  # isort: skip  (before Keras: it chooses the JAX backend)
import keras
import numpy as np
from sklearn.datasets import load_digits

FEATURES = {
    "number": rx.data.FixedLenFeature((), int),
    "image": rx.data.FixedLenFeature((), bytes),
    "label": rx.data.FixedLenFeature((), int),
}


def write_files(folder: pathlib.Path, count: int) -> None:
    digits = load_digits()
    rows = list(zip(digits.data.astype(np.uint8), digits.target, strict=True))
    for part in range(count):
        with rx.data.TFRecordWriter(folder / f"digits-{part}.tfrecord") as writer:
            for number in range(part, len(rows), count):
                image, label = rows[number]
                values = {"number": number, "image": image.tobytes(), "label": label}
                writer.write(rx.data.make_example(values))


def parse(record):
    found = rx.data.parse_single_example(record, FEATURES)
    image = np.frombuffer(found["image"], np.uint8).astype("float32") / 16
    return found["number"], image, found["label"]


def make_dataset(folder: pathlib.Path, rows: int) -> rx.data.Dataset:
    files = rx.data.Dataset.list_files(f"{folder}/digits-*.tfrecord", seed=1)
    return rx.data.TFRecordDataset(files).map(parse).shuffle(500, seed=2).batch(rows)


def make_model(strategy: rx.Strategy) -> keras.Model:
    keras.utils.set_random_seed(0)
    with strategy.scope():
        layers = [keras.Input((64,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)]
        model = keras.Sequential(layers)
        model.compile(keras.optimizers.Adam(3e-3))  # so that its state is saved with the model
    return model


def make_step(strategy: rx.Strategy, model: keras.Model):
    loss_of_rows = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def replica_step(number, x, y):
        rows = rx.get_replica_context().all_reduce("SUM", len(number))  # the last batch has fewer

        def compute_loss():
            return rx.nn.compute_average_loss(loss_of_rows(y, model(x)), global_batch_size=rows)

        loss, gradients = rx.value_and_grad(compute_loss, model)()
        model.optimizer.apply(gradients, model.trainable_variables)
        return loss

    @rx.function
    def step(batch):
        losses = strategy.run(replica_step, args=batch)
        return strategy.reduce("SUM", losses, axis=None), strategy.gather(batch[0], axis=0)

    return step


def train(step, iterator, seen: list[int], steps: int | None = None) -> None:
    """One pass over the data, or some steps of it; notes the numbers of the rows."""
    loss = float("nan")
    for batch in itertools.islice(iterator, steps):
        loss, numbers = step(batch)
        seen += np.asarray(numbers).tolist()
    epoch = iterator.get_state()["epoch"] + 1
    print(f"  epoch {epoch}: {len(seen)} rows so far, loss {float(loss):.4f}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Train from TFRecord files, stop, and resume.")
    parser.add_argument("--replicas", type=int, default=2, help="virtual CPU devices to make")
    parser.add_argument("--resume-replicas", type=int, default=4, help="the same, after the stop")
    parser.add_argument("--files", type=int, default=4, help="how many files to write")
    parser.add_argument("--batch-size", type=int, default=64, help="rows over all replicas")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--stop-after", type=int, default=10, help="steps of the first epoch")
    arguments = parser.parse_args()

    # Before anything else uses JAX.
    rx.testing.virtual_devices(max(arguments.replicas, arguments.resume_replicas))
    with tempfile.TemporaryDirectory() as name:
        compare(pathlib.Path(name), arguments)


def compare(folder: pathlib.Path, arguments: argparse.Namespace) -> None:
    def start(replicas: int):
        strategy = rx.MirroredStrategy([f"CPU:{number}" for number in range(replicas)])
        dataset = make_dataset(folder, arguments.batch_size)
        return strategy, strategy.experimental_distribute_dataset(dataset)

    write_files(folder, arguments.files)
    print("Without a stop:")
    strategy, dataset = start(arguments.replicas)
    print(dataset.plan())
    whole, expected = make_model(strategy), []
    step = make_step(strategy, whole)
    for _ in range(arguments.epochs):
        train(step, iter(dataset), expected)

    print("Stopped, and saved:")
    strategy, dataset = start(arguments.replicas)
    model, seen = make_model(strategy), []
    iterator = iter(dataset)
    train(make_step(strategy, model), iterator, seen, arguments.stop_after)
    model.save(folder / "model.keras")
    (folder / "position.pickle").write_bytes(pickle.dumps(iterator.get_state()))

    print(f"Resumed on {arguments.resume_replicas} replicas:")
    strategy, dataset = start(arguments.resume_replicas)
    with strategy.scope():
        model = keras.saving.load_model(folder / "model.keras")
    position = pickle.loads((folder / "position.pickle").read_bytes())
    iterator = iter(dataset)
    iterator.set_state(position)
    step = make_step(strategy, model)
    train(step, iterator, seen)
    for _ in range(position["epoch"] + 1, arguments.epochs):
        train(step, iter(dataset), seen)

    pairs = zip(model.get_weights(), whole.get_weights(), strict=True)
    difference = max(float(np.abs(a - b).max()) for a, b in pairs)
    print(f"same rows in the same order: {seen == expected}")
    print(f"largest difference of a weight: {difference:.1e}")


if __name__ == "__main__":
    main()
