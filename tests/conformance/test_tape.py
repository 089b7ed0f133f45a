"""`GradientTape` under every strategy: what `rx.value_and_grad` and one device compute."""

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx

from helpers import (
    NumpySGD,
    assert_trees_close,
    few_strategies,
    local,
    tanh_data,
    tanh_net,
    three_strategies,
    trained_by_hand,
    two_replicas,
)


def tape_step(model, optimizer, metric=None):
    """A replica function as TensorFlow's guides write it."""
    loss_object = keras.losses.MeanSquaredError()

    def replica_fn(batch):
        x, y = batch
        with rx.GradientTape() as tape:
            predictions = model(x, training=True)
            loss = loss_object(y, predictions) + sum(model.losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        if metric is not None:
            metric.update_state(y, predictions)
        return loss

    return replica_fn


def by_value_and_grad(model, optimizer, metric=None):
    """The same without a tape."""
    loss_object = keras.losses.MeanSquaredError()

    def replica_fn(batch):
        x, y = batch

        def loss_fn():
            predictions = model(x, training=True)
            return loss_object(y, predictions) + sum(model.losses), predictions

        value_and_grad = rx.value_and_grad(loss_fn, model, has_aux=True)
        (loss, predictions), gradients = value_and_grad()
        optimizer.apply(gradients, model.trainable_variables)
        if metric is not None:
            metric.update_state(y, predictions)
        return loss

    return replica_fn


def train(strategy, replica_fn, batches, *, compiled=True):

    def step(batch):
        return strategy.reduce("SUM", strategy.run(replica_fn, args=(batch,)), axis=None)

    step = rx.function(step) if compiled else step
    return [float(step(batch)) for batch in strategy.experimental_distribute_dataset(batches)]


def weights_of(model):
    return [np.asarray(variable.value) for variable in model.variables]


@pytest.mark.parametrize("compiled", [True, False], ids=["function", "run"])
def test_steps_are_those_of_one_device(strategy, compiled):
    batches = tanh_data(24, batches=3)
    with strategy.scope():
        model, optimizer = tanh_net(), keras.optimizers.SGD(0.1)
    losses = train(strategy, tape_step(model, optimizer), batches, compiled=compiled)
    expected_losses, expected = trained_by_hand(NumpySGD(0.1), batches)
    assert_trees_close(losses, expected_losses, rtol=1e-5, atol=1e-5)
    assert_trees_close(weights_of(model), expected, rtol=1e-5, atol=1e-5)


def net():
    keras.utils.set_random_seed(5)
    return keras.Sequential(
        [
            keras.layers.Dense(8, activation="relu", kernel_regularizer="l2"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(1),
        ]
    )


@three_strategies
def test_a_model_that_the_first_step_builds_trains_as_with_value_and_grad(strategy):
    x = np.random.default_rng(0).normal(size=(24, 3)).astype("float32")
    batches = [(x, x.sum(1, keepdims=True))] * 3
    found = []
    for make in (tape_step, by_value_and_grad):
        with strategy.scope():
            model, optimizer = net(), keras.optimizers.Adam(0.01)
            metric = keras.metrics.MeanSquaredError()
        losses = train(strategy, make(model, optimizer, metric), batches)
        found.append((losses, weights_of(model), float(metric.result())))
    assert_trees_close(*found, rtol=1e-5, atol=1e-5)


@few_strategies
def test_uneven_rows(strategy):
    # Replicas of 9 rows have 5 and 4: each tape is traced by itself.
    x = jnp.arange(9.0)
    w = keras.Variable(2.0)

    def replica_fn(rows):
        with rx.GradientTape() as tape:
            y = jnp.sum(w**2 * rows)
        return tape.gradient(y, w)

    (batch,) = strategy.experimental_distribute_dataset([np.asarray(x)])
    gradient = strategy.reduce("SUM", strategy.run(replica_fn, args=(batch,)), axis=None)
    assert float(gradient) == 2 * 2 * 36


@two_replicas
def test_collectives_in_the_block(strategy):
    w = keras.Variable(3.0)

    def replica_fn():
        context = rx.get_replica_context()
        with rx.GradientTape() as tape:
            mine = w * (context.replica_id_in_sync_group + 1).astype(jnp.float32)
            total = context.all_reduce("SUM", mine) ** 2
        by_tape = tape.gradient(total, w)

        def same():
            mine = w * (context.replica_id_in_sync_group + 1).astype(jnp.float32)
            return context.all_reduce("SUM", mine) ** 2

        return by_tape, rx.value_and_grad(same, [w])()[1][0]

    by_tape, by_jax = strategy.run(replica_fn)
    assert_trees_close(local(strategy, by_tape), local(strategy, by_jax))


@two_replicas
@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "eager"])
def test_a_tape_around_run(strategy, compiled):
    with strategy.scope():
        w, steps = keras.Variable(3.0), keras.Variable(0.0, trainable=False, aggregation="sum")
    (rows,) = strategy.experimental_distribute_dataset([np.arange(4, dtype="float32")])

    def replica_fn(rows):
        steps.assign_add(1.0)
        return jnp.sum(w**2 * rows)

    def step(rows):
        with rx.GradientTape() as tape:
            total = strategy.reduce("SUM", strategy.run(replica_fn, args=(rows,)), axis=None)
        return tape.gradient(total, w)

    # 2w Σ rows
    gradient = (rx.function(step) if compiled else step)(rows)
    assert float(gradient) == 36.0
    assert float(steps.value) > 0


@two_replicas
def test_values_of_replicas_are_no_targets(strategy):
    w = keras.Variable(3.0)
    with rx.GradientTape() as tape:
        losses = strategy.run(lambda: w * rx.get_replica_context().replica_id_in_sync_group)
    with pytest.raises(rx.errors.PerReplicaMisuse, match="cannot differentiate a PerReplica"):
        tape.gradient(losses, w)
