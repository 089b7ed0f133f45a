"""`GradientTape` in closures for parameter servers: variables, tables, and optimizers."""

import keras
import numpy as np
import pytest

import replicax as rx

ROWS, WIDTH = 12, 4
IDS = np.array([[7, 7, 3], [3, 1, -1], [0, 11, 11]], "int32")
TARGETS = np.array([[1.0], [-1.0], [0.5]], "float32")


def embedding_model():
    keras.utils.set_random_seed(1)
    ids = keras.Input((3,), dtype="int32")
    rows = rx.layers.ShardedEmbedding(ROWS, WIDTH, combiner="mean", name="table")(ids)
    return keras.Model(ids, keras.layers.Dense(1)(rows))


def with_tape(model, optimizer, x, y):
    with rx.GradientTape() as tape:
        loss = keras.ops.mean((model(x, training=True) - y) ** 2)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return loss


def by_value_and_grad(model, optimizer, x, y):
    def loss():
        return keras.ops.mean((model(x, training=True) - y) ** 2)

    value, gradients = rx.value_and_grad(loss, model)()
    optimizer.apply(gradients, model.trainable_variables)
    return value


@pytest.mark.parametrize("in_run", [True, False], ids=["run", "closure"])
def test_a_sharded_table_trains_as_a_local_one(started, in_run):
    strategy = started(rx.experimental.partitioners.FixedShardsPartitioner(2))
    with strategy.scope():
        model, optimizer = embedding_model(), keras.optimizers.SGD(0.5)
    coordinator = rx.coordinator.ClusterCoordinator(strategy)

    @rx.function
    def step(x, y):
        if in_run:
            return strategy.run(lambda x, y: with_tape(model, optimizer, x, y), args=(x, y))
        return with_tape(model, optimizer, x, y)

    losses = []
    for _ in range(3):
        value = coordinator.schedule(step, args=(IDS, TARGETS))
        coordinator.join()
        losses.append(float(coordinator.fetch(value)))
    local, own = embedding_model(), keras.optimizers.SGD(0.5)
    expected = [float(by_value_and_grad(local, own, IDS, TARGETS)) for _ in range(3)]
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    for ours, theirs in zip(model.weights, local.weights, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-5, atol=1e-6)


def test_rows_are_what_has_a_gradient(started):
    strategy = started(servers=1)
    with strategy.scope():
        table = keras.Variable(np.eye(ROWS, 3, dtype="float32"))
        counter = keras.Variable(0.0, trainable=False)
    coordinator = rx.coordinator.ClusterCoordinator(strategy)

    @rx.function
    def slopes(ids):
        with rx.GradientTape() as tape:
            total = (rx.nn.embedding_lookup(table, ids) ** 2).sum()
            counter.assign_add(total)
        return tape.gradient(total, table)

    value = coordinator.schedule(slopes, args=(np.array([2, 2], "int32"),))
    # Row 2 of the identity, twice: 2 · 2 · (0, 0, 1); of the two rows that travel one is unused.
    assert np.asarray(coordinator.fetch(value)).sum(0).tolist() == [0.0, 0.0, 4.0]
    coordinator.join()
    assert float(counter.numpy()) == 2.0
