"""The program that TensorFlow and Replicax both run: `tf` is `tensorflow` or `replicax.tf`."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .training import (
    EVALUATE,
    FIT,
    LOOP,
    PREDICT,
    SERVERS,
    WORKERS,
    Layers,
    Plan,
    Training,
    synchronous,
)

if TYPE_CHECKING:
    from .workloads import Workload


class Program:
    """Trains a workload under a strategy, by `fit` and by a custom loop.

    Args:
        plan: What to train.
        workload: The same, made.
        tf: TensorFlow, or what stands for it.
        strategy: Whose scope the model is made in.
        normalization: How the model normalizes in `fit`: over all replicas on all sides.
        embedding: What tables are, if not Keras' embedding.
        optimizers: Where optimizers come from, if not from Keras.
    """

    def __init__(
        self,
        plan: Plan,
        workload: Workload,
        tf: Any,
        strategy: Any,
        *,
        normalization: dict[str, Any] | None = None,
        embedding: Any = None,
        optimizers: Any = None,
    ) -> None:
        self._plan, self._workload, self._tf, self._strategy = plan, workload, tf, strategy
        self._normalization = normalization or {}
        self._embedding = embedding or tf.keras.layers.Embedding
        self._optimizers = optimizers or tf.keras.optimizers
        if workload.precision != "float32":
            tf.keras.mixed_precision.set_global_policy(workload.precision)

    def training(self, path: str) -> Training:
        if self._plan.strategy == SERVERS:
            return {FIT: self._fit_by_servers, LOOP: self._loop_by_servers}[path]()
        made = {FIT: self._fit, LOOP: self._loop, EVALUATE: self._evaluate, PREDICT: self._predict}
        return made[path]()

    def _scope(self) -> Any:
        return (
            contextlib.nullcontext() if self._plan.strategy == "default" else self._strategy.scope()
        )

    def _made(self, path: str, make: Any = None) -> tuple[Any, Any, Callable[..., Any]]:
        """A model with the weights that all sides begin with, an optimizer, a loss of each row."""
        keras, workload = self._tf.keras, self._workload
        normalization = self._normalization if path == FIT else {}
        layers = Layers(
            keras.layers,
            Embedding=self._embedding,
            BatchNormalization=functools.partial(keras.layers.BatchNormalization, **normalization),
        )
        model = (make or workload.model)(keras, layers)
        workload.begin(model)
        optimizer = getattr(self._optimizers, workload.optimizer)(**workload.settings)
        kind = "BinaryCrossentropy" if workload.binary else "SparseCategoricalCrossentropy"
        loss = functools.partial(getattr(keras.losses, kind), from_logits=True)
        return model, optimizer, loss

    def _compiled(self) -> Any:
        with self._scope():
            model, optimizer, loss = self._made(FIT)
            model.compile(optimizer, loss())
        return model

    def _fit(self) -> Training:
        workload, model = self._workload, self._compiled()

        def fit(inputs: Any, labels: Any) -> float:
            history = model.fit(
                inputs, labels, batch_size=workload.batch_size, shuffle=False, verbose=0
            )
            return float(history.history["loss"][0])

        return self._synchronous(fit)

    def _evaluate(self) -> Training:
        workload, model = self._workload, self._compiled()

        def evaluate(inputs: Any, labels: Any) -> float:
            return float(model.evaluate(inputs, labels, batch_size=workload.batch_size, verbose=0))

        return self._synchronous(evaluate)

    def _predict(self) -> Training:
        workload, model = self._workload, self._compiled()

        def predict(inputs: Any, _: Any) -> float:
            found = model.predict(inputs, workload.batch_size, verbose=0)
            return float(abs(found.astype("float32")).mean())  # sums of bfloat16 lose their digits

        return self._synchronous(predict)

    def _synchronous(self, run: Callable[..., float]) -> Training:
        workload = self._workload
        return synchronous(
            lambda: run(*workload.batches[0]),
            lambda: run(*workload.rows),
            lambda: run(*workload.first_rows(workload.checked)),
        )

    def _dataset(self, rows: Any) -> Any:
        tf = self._tf
        dataset = tf.data.Dataset.from_tensor_slices(rows)
        dataset = dataset.batch(self._workload.batch_size, drop_remainder=True)
        if self._plan.strategy != WORKERS:
            return dataset
        options = tf.data.Options()  # each worker takes its rows of every batch
        options.experimental_distribute.auto_shard_policy = (
            tf.data.experimental.AutoShardPolicy.DATA
        )
        return dataset.with_options(options)

    def _ready(self, make: Any = None) -> tuple[Any, Any, Callable[..., Any]]:
        """A model, its optimizer, and the mean loss over all replicas; made in the scope."""
        with self._scope():
            model, optimizer, loss = self._made(LOOP, make)
            losses = loss(reduction="none")
            build = getattr(optimizer, "build", getattr(optimizer, "_create_all_weights", None))
            build(model.trainable_variables)

        def average(labels: Any, logits: Any) -> Any:
            found, rows = losses(labels, logits), self._workload.batch_size
            return self._tf.nn.compute_average_loss(found, global_batch_size=rows)

        return model, optimizer, average

    def _step(self) -> tuple[Callable[..., Any], Any]:
        """A step, and the optimizer that it uses."""
        tf = self._tf
        model, optimizer, average = self._ready()

        def step(inputs: Any, labels: Any) -> Any:
            with tf.GradientTape() as tape:
                value = average(labels, model(inputs, training=True))
            apply(tape, value, model, optimizer)
            return value

        return step, optimizer

    def _adversarial_step(self) -> tuple[Callable[..., Any], Any]:
        """The step of TensorFlow's tutorial about DCGAN, and the generator's optimizer."""
        tf = self._tf
        generator, of_generator, average = self._ready()
        discriminator, of_discriminator, _ = self._ready(self._workload.discriminator)

        def step(noise: Any, pictures: Any) -> Any:
            with tf.GradientTape() as one, tf.GradientTape() as other:
                made = generator(noise, training=True)
                real = discriminator(pictures, training=True)
                fake = discriminator(made, training=True)
                misled = average(tf.ones_like(fake), fake)
                told = average(tf.ones_like(real), real) + average(tf.zeros_like(fake), fake)
            apply(one, misled, generator, of_generator)
            apply(other, told, discriminator, of_discriminator)
            return misled + told

        return step, of_generator

    def _loop(self) -> Training:
        tf, strategy, workload = self._tf, self._strategy, self._workload
        step, _ = self._adversarial_step() if workload.discriminator else self._step()

        @tf.function
        def train_step(inputs: Any, labels: Any) -> Any:
            losses = strategy.run(step, args=(inputs, labels))
            return strategy.reduce("SUM", losses, axis=None)

        def epoch(dataset: Any) -> float:
            losses = [train_step(*batch) for batch in dataset]
            return sum(map(float, losses)) / len(losses)

        distribute = strategy.experimental_distribute_dataset
        one = distribute(self._dataset(workload.batches[0]))
        every = distribute(self._dataset(workload.rows))
        return synchronous(lambda: epoch(one), lambda: epoch(every))

    # By parameter servers. Updates come as they come, so they are counted.

    def _worker_dataset(self, context: Any = None) -> Any:
        return self._dataset(self._workload.rows).repeat()

    def _fit_by_servers(self) -> Training:
        workload = self._workload
        with self._strategy.scope():
            model, optimizer, loss = self._made(FIT)
            model.compile(optimizer, loss())
        creator = self._tf.keras.utils.experimental.DatasetCreator(self._worker_dataset)

        def fit(steps: int) -> None:
            model.fit(creator, steps_per_epoch=steps, verbose=0)

        return Training(
            lambda: fit(1), lambda: fit(workload.steps), lambda: [], lambda: counted(optimizer)
        )

    def _loop_by_servers(self) -> Training:
        tf, strategy, workload = self._tf, self._strategy, self._workload
        coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
        step, optimizer = self._step()

        @tf.function
        def on_a_batch(inputs: Any, labels: Any) -> Any:
            return strategy.run(step, args=(inputs, labels))

        @tf.function
        def on_data(iterator: Any) -> Any:
            return strategy.run(step, args=next(iterator))

        iterator = iter(coordinator.create_per_worker_dataset(self._worker_dataset))

        def one(inputs: Any, labels: Any) -> float:
            constant = tf.nest.map_structure(tf.constant, (inputs, labels))
            return float(coordinator.schedule(on_a_batch, args=constant).fetch())

        def epoch() -> None:
            for _ in range(workload.steps):
                coordinator.schedule(on_data, args=(iterator,))
            coordinator.join()

        return Training(
            lambda: one(*workload.batches[0]),
            epoch,
            lambda: [one(*batch) for batch in workload.batches[:6]],
            lambda: counted(optimizer),
        )


def apply(tape: Any, loss: Any, model: Any, optimizer: Any) -> None:
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))


def counted(optimizer: Any) -> int:
    return int(optimizer.iterations.numpy())
