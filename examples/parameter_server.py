"""A recommender on parameter servers: a sparse table, and data that the workers share out.

    python examples/parameter_server.py --workers 2 --servers 1  # needs the extra `ps`

People rate films by planted tastes. The model has a row for each person and each film; a step
fetches and changes only the rows of its batch. Each rating is seen once in an epoch, even if a
worker dies. With `--engine threads` servers and workers are threads of this process, otherwise
they are processes.

The model is then served without servers: from a checkpoint, as a program that JAX alone runs, and
with `--saved-model` from a folder for TensorFlow Serving, which needs TensorFlow. `--output` keeps
these files.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import replicax as rx  # isort: skip  (before Keras: it chooses the JAX backend)
import jax
import keras
import numpy as np
from jax import export

PEOPLE, FILMS, TASTES = 2_000, 500, 4


def ratings(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of numbers, of a person and a film, and how much the one likes the other."""
    tastes = np.random.default_rng(0).normal(size=(PEOPLE + FILMS, TASTES)) / TASTES**0.5
    random = np.random.default_rng(seed)
    people, films = random.integers(0, PEOPLE, count), random.integers(0, FILMS, count)
    # One table for both: films have the numbers behind those of the people.
    pairs = np.stack([people, films + PEOPLE], axis=1)
    likes = (tastes[pairs[:, 0]] * tastes[pairs[:, 1]]).sum(axis=1)
    return pairs.astype("int32"), (likes + 0.1 * random.normal(size=count)).astype("float32")


def make_model() -> keras.Model:
    pairs = keras.Input((2,), dtype="int32")
    start = keras.initializers.RandomNormal(stddev=0.3, seed=1)
    rows = rx.layers.ShardedEmbedding(PEOPLE + FILMS, 2 * TASTES, start, name="tastes")(pairs)
    likes = keras.ops.sum(rows[:, 0] * rows[:, 1], axis=-1)
    return keras.Model(pairs, likes)


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a recommender on parameter servers.")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--servers", type=int, default=1)
    engines = ("processes", "threads")
    parser.add_argument("--engine", choices=engines, help="default: processes, or TF_CONFIG")
    parser.add_argument("--ratings", type=int, default=60_000, help="number of ratings to train on")
    parser.add_argument("--batch-size", type=int, default=256, help="of one worker's step")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--output", type=Path, help="folder of what is kept; default: none stays")
    parser.add_argument("--saved-model", action="store_true", help="write a SavedModel, too")
    arguments = parser.parse_args()

    strategy = rx.ParameterServerStrategy(
        # A shard of the table on each of them.
        variable_partitioner=rx.experimental.partitioners.FixedShardsPartitioner(arguments.servers),
        num_workers=arguments.workers,
        num_ps=arguments.servers,
        engine=arguments.engine,
    )
    print(strategy)
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.output or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            path, pairs, predicted = train(strategy, arguments, folder)
        finally:
            strategy.close()  # ends what it has started; the end of the program does it, too
        write_for_serving(path, folder, saved_model=arguments.saved_model)
        check(folder, pairs, predicted, saved_model=arguments.saved_model)


def train(
    strategy: rx.ParameterServerStrategy, arguments: argparse.Namespace, folder: Path
) -> tuple[str, np.ndarray, np.ndarray]:
    """Train, and return a checkpoint's path, new pairs, and what is predicted for them."""
    coordinator = rx.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        model = make_model()
        optimizer = keras.optimizers.Adagrad(0.2, initial_accumulator_value=1e-5)
        error = keras.metrics.RootMeanSquaredError()
    squared_error = keras.losses.MeanSquaredError()
    count, batch_size = arguments.ratings, arguments.batch_size

    def dataset_fn():
        """Is called on every worker."""
        pairs, likes = ratings(count, seed=1)
        data = rx.data.Dataset.from_tensor_slices((pairs, likes))
        return data.shuffle(count, seed=2).batch(batch_size)

    @rx.function
    def train_step(iterator):
        pairs, likes = next(iterator)  # on the worker that runs this

        def compute_loss():
            predicted = model(pairs, training=True)
            return squared_error(likes, predicted), predicted

        (_, predicted), gradients = rx.value_and_grad(compute_loss, model, has_aux=True)()
        optimizer.apply(gradients, model.trainable_variables)  # on the servers, row by row
        error.update_state(likes, predicted)

    per_worker = coordinator.create_per_worker_dataset(dataset_fn, shard="dynamic")
    steps = len(per_worker)
    for epoch in range(arguments.epochs):
        error.reset_state()
        start = time.perf_counter()
        iterator = iter(per_worker)
        for _ in range(steps):
            coordinator.schedule(train_step, args=(iterator,))
        coordinator.join()
        speed = count / (time.perf_counter() - start)
        print(f"epoch {epoch + 1}: error {float(error.result()):.3f}, {speed:,.0f} ratings/s")

    pairs, likes = ratings(5_000, seed=3)  # others, of the same people and films
    predicted = model.predict(pairs, batch_size=1_000, verbose=0)
    print(f"new ratings: error {np.sqrt(np.mean((predicted - likes) ** 2)):.3f}")
    late = coordinator.staleness()
    mean = sum(updates * times for updates, times in late.items()) / sum(late.values())
    print(f"a gradient was {mean:.1f} updates late, at most {max(late)}")
    table = model.get_layer("tastes").embeddings
    where = [shard.device for shard in getattr(table, "variables", [table])]
    print(f"the table, of {table.shape[0]} rows, is on {' and '.join(where)}")
    checkpoint = rx.train.Checkpoint(model=model, optimizer=optimizer)  # to train on, or to serve
    return checkpoint.save(folder / "checkpoint"), pairs, predicted


def write_for_serving(path: str, folder: Path, *, saved_model: bool) -> None:
    """Write the model of a checkpoint as programs that need neither servers nor Replicax."""
    model = make_model()  # outside every scope: the tables are whole, on one device
    rx.train.Checkpoint(model=model).restore(path).expect_partial()  # without the optimizer
    pairs = jax.ShapeDtypeStruct(export.symbolic_shape("rows, 2"), "int32")
    predict = jax.jit(lambda pairs: model(pairs, training=False))
    program = export.export(predict, platforms=("cpu", "cuda", "tpu"))(pairs)
    (folder / "predict.jax").write_bytes(program.serialize())
    if saved_model:
        model.export(folder / "saved_model")


def check(folder: Path, pairs: np.ndarray, expected: np.ndarray, *, saved_model: bool) -> None:
    """Load what was written, as a server would, and compare its answers with the trained model."""
    program = export.deserialize(bytearray((folder / "predict.jax").read_bytes()))
    answers = {"jax.export": program.call(pairs)}
    if saved_model:
        import tensorflow as tf

        served = tf.saved_model.load(folder / "saved_model")  # holds the variables
        answers["SavedModel"] = served.serve(pairs)
    for name, answer in answers.items():
        difference = np.max(np.abs(np.asarray(answer) - expected))
        print(f"{name}: {len(pairs)} answers, largest difference {difference:.1e}")
        if difference > 1e-5:
            raise SystemExit(f"{name} predicts otherwise than the trained model")


if __name__ == "__main__":
    main()
