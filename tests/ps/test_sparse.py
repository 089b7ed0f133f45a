"""Tables of embeddings on parameter servers: what travels, and what it is trained to."""

import keras
import numpy as np
import pytest

import replicax as rx
from replicax._core.errors import UsageError

ROWS, WIDTH = 50, 4


def made_model(optimizer, combiner="mean"):
    keras.utils.set_random_seed(1)
    ids = keras.Input((3,), dtype="int32")
    table = rx.layers.ShardedEmbedding(ROWS, WIDTH, combiner=combiner, name="table")
    rows = table(ids) if combiner else keras.layers.Flatten()(table(ids))
    model = keras.Model(ids, keras.layers.Dense(1)(rows))
    model.compile(optimizer, "mse")
    return model


def data():
    rng = np.random.default_rng(0)
    ids = rng.integers(0, ROWS, (23, 3)).astype("int32")  # some ids twice in a batch
    ids[4, 1:] = ids[9, 2] = -1
    return ids, rng.normal(size=(23, 1)).astype("float32")


@pytest.mark.parametrize(
    ("make", "combiner"),
    [
        # Optimizers to which a zero gradient is no step: rows that are not named stay as they are
        # in the local model, too.
        (lambda: keras.optimizers.SGD(0.5), "sqrtn"),
        (lambda: keras.optimizers.Adagrad(0.1), "mean"),
    ],
)
def test_a_table_is_trained_as_a_local_one(started, make, combiner):
    ids, targets = data()
    strategy = started(rx.experimental.partitioners.FixedShardsPartitioner(3), max_staleness=0)
    with strategy.scope():
        model = made_model(make(), combiner)
    local = made_model(make(), combiner)
    how = {"batch_size": 5, "epochs": 2, "shuffle": False, "verbose": 0}
    losses = model.fit(ids, targets, **how).history["loss"]
    np.testing.assert_allclose(losses, local.fit(ids, targets, **how).history["loss"], rtol=1e-5)
    for ours, theirs in zip(model.weights, local.weights, strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        model.predict(ids, verbose=0), local.predict(ids, verbose=0), rtol=1e-5, atol=1e-6
    )


def test_only_rows_that_are_named_change_under_adam(started):
    strategy = started(rx.experimental.partitioners.FixedShardsPartitioner(2))
    with strategy.scope():
        model = made_model(keras.optimizers.Adam(0.1))
    before = np.array(model.get_layer("table").embeddings.numpy())
    ids = np.array([[7, 7, 30], [30, -1, -1]], "int32")
    for _ in range(3):
        model.train_on_batch(ids, np.ones((2, 1), "float32"))
    after = model.get_layer("table").embeddings.numpy()
    assert np.flatnonzero((before != after).any(axis=1)).tolist() == [7, 30]


def test_rows_travel_and_not_the_table(started):
    strategy = started(servers=1)
    with strategy.scope():
        table = keras.Variable(np.eye(ROWS, 3, dtype="float32"))
    coordinator = rx.coordinator.ClusterCoordinator(strategy)
    total = rx.function(lambda ids: rx.nn.embedding_lookup(table, ids).sum())
    # Rows 0 and 2 of the identity; 2 twice: 1 + 1 + 1.
    value = coordinator.schedule(total, args=(np.array([0, 2, 2], "int32"),))
    assert float(coordinator.fetch(value)) == 3.0
    program = strategy.coordination.tracer.task(total, (np.array([1, 1, 1], "int32"),), {})
    meta = program.family.usual.meta
    assert meta["reads"] == []
    assert [one["rows"] for one in meta["tables"]] == [3]


def test_a_closure_with_tables_is_traced_three_times(started):
    strategy = started(workers=1)
    with strategy.scope():
        tables = [rx.layers.ShardedEmbedding(ROWS, WIDTH) for _ in range(2)]
        for table in tables:
            table.build((None, 3))
    coordinator = rx.coordinator.ClusterCoordinator(strategy)
    traces = []

    @rx.function
    def looked_up(ids):
        traces.append(ids.shape)
        return sum(table(ids) for table in tables)

    ids = data()[0][:4]
    found = coordinator.fetch(coordinator.schedule(looked_up, args=(ids,)))
    whole = sum(np.asarray(table.embeddings.numpy()) for table in tables)
    np.testing.assert_allclose(found, whole[ids], rtol=1e-6)
    assert len(traces) == 3  # what it reads; that it reads rows; and with these as inputs


def test_a_dense_variable_that_is_also_looked_up_comes_whole(started):
    strategy = started(servers=1)
    with strategy.scope():
        table = keras.Variable(np.arange(6.0, dtype="float32").reshape(3, 2))
    coordinator = rx.coordinator.ClusterCoordinator(strategy)

    @rx.function
    def both(ids):
        return rx.nn.embedding_lookup(table, ids).sum() + keras.ops.sum(table)

    # Row 1 is [2, 3], and the whole is 0 + … + 5.
    value = coordinator.schedule(both, args=(np.array([1], "int32"),))
    assert float(coordinator.fetch(value)) == 5.0 + 15.0


def test_what_a_table_cannot_do(started):
    strategy = started(servers=1)
    with strategy.scope():
        layer = rx.layers.ShardedEmbedding(ROWS, WIDTH)
        layer.build(None)
        offset = keras.Variable(1, dtype="int32")
    coordinator = rx.coordinator.ClusterCoordinator(strategy)
    ids = np.array([1, 2], "int32")
    norm = rx.function(lambda ids: layer(ids).sum() + keras.ops.sum(layer.embeddings**2))
    with pytest.raises(UsageError, match="embedding_lookup"):
        coordinator.schedule(norm, args=(ids,))
    moved = rx.function(lambda ids: layer(ids + offset).sum())
    with pytest.raises(UsageError, match="ids that depend on variable"):
        coordinator.schedule(moved, args=(ids,))
    plain = rx.function(lambda ids: layer(ids).sum())
    with pytest.raises(UsageError, match="vocabulary"):
        coordinator.fetch(coordinator.schedule(plain, args=(np.array([ROWS], "int32"),)))
    with pytest.raises(UsageError, match=f"id {ROWS} in table"):
        coordinator.join()


def test_a_model_with_a_table_is_saved_as_any_other(started, tmp_path):
    ids, _ = data()
    strategy = started(rx.experimental.partitioners.FixedShardsPartitioner(2))
    with strategy.scope():
        model = made_model("sgd")
    model.save(tmp_path / "model.keras")
    plain = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(
        plain.predict(ids, verbose=0), model.predict(ids, verbose=0), rtol=1e-6
    )
    assert type(plain.get_layer("table").embeddings) is type(keras.Variable(0.0))
