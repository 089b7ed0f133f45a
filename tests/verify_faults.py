"""Small training programs: one that is right, and the same with a fault each.

Batches have 8, 8 and 5 rows; with two replicas the last is uneven. A program runs by itself, as a
script would, and makes its own strategy.
"""

from __future__ import annotations

import keras
import numpy as np
from keras import layers, ops

import replicax as rx

BATCH = 8
X = np.random.default_rng(1).normal(size=(21, 4)).astype("float32")
Y = np.random.default_rng(2).normal(size=(21, 2)).astype("float32")
BATCHES = [(X[i : i + BATCH], Y[i : i + BATCH]) for i in (0, 8, 16)]


def replicas():
    return rx.get_strategy().num_replicas_in_sync


def right_model():
    return [layers.Dense(6, activation="tanh")]


def right_loss(losses):
    return ops.sum(losses) / BATCH


def right_data(strategy):
    return strategy.experimental_distribute_dataset(BATCHES)


def right_update(optimizer, gradients, variables):
    optimizer.apply(gradients, variables)


def right_report(strategy, losses):
    return strategy.reduce("SUM", losses, axis=None)


def train(
    hidden=right_model,
    loss=right_loss,
    data=right_data,
    update=right_update,
    rate=lambda: 0.1,
    inputs=lambda x: x,
    metric=keras.metrics.Mean,
    report=right_report,
):
    """A custom loop; each argument is a part of it that can be wrong."""
    strategy = rx.MirroredStrategy()
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), *hidden(), layers.Dense(2, name="head")])
        optimizer = keras.optimizers.SGD(rate(), momentum=0.9)
        mean = metric()

    def step(batch):
        x, y = batch

        def value(x, y):
            losses = ops.mean((model(inputs(x), training=True) - y) ** 2, axis=-1)
            mean.update_state(losses)
            return loss(losses)

        found, gradients = rx.value_and_grad(value, model)(x, y)
        update(optimizer, gradients, model.trainable_variables)
        return found

    for batch in data(strategy):
        report(strategy, strategy.run(step, args=(batch,)))


# The faults.


def loss_scaled_twice():
    train(loss=lambda losses: right_loss(losses) / replicas())


def loss_not_divided():
    train(loss=ops.mean, report=lambda s, losses: s.reduce("MEAN", losses, axis=None))


def normalisation_per_replica():
    train(hidden=lambda: [layers.Dense(6), layers.BatchNormalization(), layers.ReLU()])


def dropped_remainder():
    def data(strategy):
        full = [b for b in BATCHES if len(b[0]) % strategy.num_replicas_in_sync == 0]
        return strategy.experimental_distribute_dataset(full)

    train(data=data)


def dropped_rows():
    def data(strategy):
        n = strategy.num_replicas_in_sync
        even = [(x[: len(x) // n * n], y[: len(x) // n * n]) for x, y in BATCHES]
        return strategy.experimental_distribute_dataset(even)

    train(data=data)


def _from_shards(strategy, share):
    def make(context):
        per_replica = context.get_per_replica_batch_size(BATCH)
        order = share(context, np.arange(16))
        chosen = [order[i : i + per_replica] for i in range(0, len(order), per_replica)]
        return [(X[rows], Y[rows]) for rows in chosen]

    mode = rx.InputReplicationMode.PER_REPLICA
    options = rx.InputOptions(experimental_replication_mode=mode)
    return strategy.distribute_datasets_from_function(make, options)


def right_shard():
    def share(context, rows):
        return rows[context.input_pipeline_id :: context.num_input_pipelines]

    train(data=lambda strategy: _from_shards(strategy, share))


def wrong_shard():
    train(
        data=lambda s: _from_shards(s, lambda context, rows: rows[:: context.num_input_pipelines])
    )


def shuffled_by_rank():
    def share(context, rows):
        mixed = np.random.default_rng(context.input_pipeline_id).permutation(rows)
        return mixed[context.input_pipeline_id :: context.num_input_pipelines]

    train(data=lambda strategy: _from_shards(strategy, share))


def seed_by_replicas():
    keras.utils.set_random_seed(replicas() + 7)
    keras.utils.set_random_seed(rx.MirroredStrategy().num_replicas_in_sync)
    train()


def batch_of_each_replica():
    def make(context):  # batches of BATCH, not of context.get_per_replica_batch_size(BATCH)
        return BATCHES[:2]

    train(data=lambda strategy: strategy.distribute_datasets_from_function(make))


def shuffled_by_strategy():
    def data(strategy):
        rows = np.random.default_rng(strategy.num_replicas_in_sync).permutation(16)
        return strategy.experimental_distribute_dataset([(X[rows[:8]], Y[rows[:8]])])

    train(data=data)


class Mask(layers.Layer):
    def __init__(self, seed):
        super().__init__()
        self.seed = seed

    def call(self, inputs):
        return keras.random.dropout(inputs, 0.5, seed=self.seed)


def same_mask():
    train(hidden=lambda: [layers.Dense(6), Mask(1337)])


def draws_more_often():
    def hidden():
        count, generator = replicas(), keras.random.SeedGenerator(1)

        def draw(inputs):
            for _ in range(count):
                generator.next()
            return inputs

        return [layers.Dense(6), layers.Lambda(draw)]

    train(hidden=hidden)


def noise_of_each_replica():
    generator = keras.random.SeedGenerator(1)
    train(inputs=lambda x: x + keras.random.normal((3,), seed=generator)[0])


def gradients_not_summed():
    train(update=_only_here)


def _only_here(optimizer, gradients, variables):
    first = ops.cast(rx.get_replica_context().replica_id_in_sync_group == 0, "float32")
    optimizer.apply([g * first for g in gradients], variables)


def _plain_loop(aggregation):
    strategy = rx.MirroredStrategy()
    with strategy.scope():
        kernel = keras.Variable(np.ones((4, 2), "float32"), aggregation=aggregation, name="kernel")

    def step(batch):
        x, y = batch
        _, (gradient,) = rx.value_and_grad(
            lambda: ops.sum((ops.matmul(x, kernel) - y) ** 2) / BATCH, [kernel]
        )()
        kernel.assign(kernel - 0.1 * gradient)

    for batch in strategy.experimental_distribute_dataset(BATCHES):
        strategy.run(step, args=(batch,))


def first_replica_kept():
    _plain_loop("only_first_replica")


def mean_kept():
    _plain_loop("mean")


def written_by_each():
    _plain_loop("none")


def clipped_before_the_sum():
    def update(optimizer, gradients, variables):
        norm = ops.sqrt(sum(ops.sum(g**2) for g in gradients))
        optimizer.apply([g * (0.1 / norm) for g in gradients], variables)

    train(update=update)


def mean_of_means():
    train(loss=lambda losses: ops.mean(losses) / replicas())


class FirstReplicasTotal(keras.metrics.Metric):
    def __init__(self):
        super().__init__()
        self.total = keras.Variable(0.0, aggregation="only_first_replica", name="total")

    def update_state(self, values):
        self.total.assign_add(ops.sum(values))

    def result(self):
        return self.total


def stale_metric():
    train(metric=FirstReplicasTotal)


def reported_as_mean():
    train(report=lambda strategy, losses: strategy.reduce("MEAN", losses, axis=None))


def rate_times_replicas():
    train(rate=lambda: 0.1 * replicas())


def rows_depend_on_their_neighbours():
    train(inputs=lambda x: x - ops.roll(x, 1, axis=0))


def unseeded_map():
    def data(strategy):
        noise = np.random.default_rng()
        mapped = [(x + noise.normal(size=x.shape).astype("float32"), y) for x, y in BATCHES]
        return strategy.experimental_distribute_dataset(mapped)

    train(data=data)


def unseeded_start():
    kernel = np.random.default_rng().normal(size=(4, 6)).astype("float32")

    def hidden():
        return [layers.Dense(6, kernel_initializer=lambda *_, **__: kernel)]

    train(hidden=hidden)


# Right, too.


def right_draws():
    def hidden():
        return [layers.Dense(6), layers.GaussianNoise(0.1), layers.Dropout(0.5)]

    train(hidden=hidden)


def right_batch_that_grows():
    def data(strategy):
        size = 4 * strategy.num_replicas_in_sync
        return strategy.experimental_distribute_dataset([(X[:size], Y[:size])])

    train(data=data)
