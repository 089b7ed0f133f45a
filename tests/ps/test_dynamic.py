"""`rx.layers.DynamicTable` on parameter servers: what it is trained to, bounds, ways out."""

import keras
import numpy as np
import pytest

import replicax as rx
from replicax._core.errors import UsageError

WIDTH = 3
FAR = 10**12  # 64 bits; its lowest 32 are those of another id
NEAR = int(np.int64(FAR).astype(np.int32))


@pytest.fixture(scope="module")
def strategy():
    made = rx.ParameterServerStrategy(engine="threads", num_workers=1, num_ps=2, max_staleness=0)
    yield made
    made.close()


def lazy_adam(values, grads, slots, step):
    first = slots.setdefault("first", np.zeros(WIDTH))
    second = slots.setdefault("second", np.zeros(WIDTH))
    first += 0.1 * (grads - first)
    second += 0.001 * (grads**2 - second)
    # Single precision, as Keras has it: near 1 that shows.
    beta_1, beta_2, now = np.float32(0.9), np.float32(0.999), np.float32(step + 1)
    alpha = 0.5 * np.sqrt(1 - beta_2**now) / (1 - beta_1**now)
    return values - alpha * first / (np.sqrt(second) + 1e-7)


def lazy_ftrl(values, grads, slots, step):
    squares = slots.get("squares", np.full(WIDTH, 0.1))
    linear = slots.setdefault("linear", np.zeros(WIDTH))
    new = slots["squares"] = squares + grads**2
    linear += grads - (np.sqrt(new) - np.sqrt(squares)) / 0.5 * values
    return (np.clip(linear, -0.01, 0.01) - linear) / (np.sqrt(new) / 0.5)


def lazy_rmsprop(values, grads, slots, step):
    mean = slots["mean"] = 0.9 * slots.get("mean", 0.0) + 0.1 * grads**2
    return values - 0.5 * grads / np.sqrt(mean + 1e-7)


@pytest.mark.parametrize(
    ("optimizer", "lazy"),
    [
        (keras.optimizers.Adam(0.5), lazy_adam),
        (keras.optimizers.Ftrl(0.5, l1_regularization_strength=0.01), lazy_ftrl),
        (keras.optimizers.RMSprop(0.5), lazy_rmsprop),  # compiled, unlike the two before
    ],
)
def test_rows_that_are_named_are_trained_lazily(strategy, optimizer, lazy):
    with strategy.scope():
        dynamic = rx.layers.DynamicTable(WIDTH, "zeros")
        sharded = rx.layers.ShardedEmbedding(40, WIDTH, "zeros")
        dynamic.build(None), sharded.build(None)

    @rx.function
    def step(ids, factors):
        def loss():
            # Twice the same table: an id may be named in both.
            both = dynamic(ids[:, 0]) * factors[:, 0] + dynamic(ids[:, 1]) * factors[:, 1]
            return both.sum() + (sharded(ids) * factors).sum()

        tables = [dynamic.embeddings, sharded.embeddings]
        _, grads = rx.value_and_grad(loss, tables)()
        optimizer.apply(grads, tables)

    coordinator = rx.coordinator.ClusterCoordinator(strategy)
    rng = np.random.default_rng(0)
    values, slots = np.zeros((40, WIDTH)), [{} for _ in range(40)]
    for number in range(4):
        ids = rng.integers(0, 40, (8, 2)).astype("int32")
        factors = rng.normal(size=(8, 2, WIDTH)).astype("float32")
        coordinator.schedule(step, args=(ids, factors))
        for row in np.unique(ids):
            grads = factors[ids == row].astype(float).sum(0)
            values[row] = lazy(values[row], grads, slots[row], number)
    coordinator.join()
    np.testing.assert_allclose(dynamic(np.arange(40)), values, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(sharded.embeddings.numpy(), values, rtol=1e-5, atol=1e-6)
    named = sum(bool(held) for held in slots)
    assert dynamic.statistics()["rows"] == dynamic.statistics()["created"] == named < 40


def made_model(optimizer="adagrad", **options):
    ids = keras.Input((3,), dtype="int32")
    table = rx.layers.DynamicTable(WIDTH, combiner="sqrtn", name="table", seed=3, **options)
    model = keras.Model(ids, keras.layers.Dense(1, kernel_initializer="ones")(table(ids)))
    model.compile(optimizer, "mse")
    return model


def data():
    ids = np.array([[FAR, 7, -1], [7, -1, -1], [NEAR, -8, 7], [NEAR, NEAR, 2]], "int64")
    return ids, np.array([[1.0], [2.0], [3.0], [4.0]], "float32")


@pytest.fixture(scope="module")
def trained(strategy):
    with strategy.scope():
        model = made_model()
    model.fit(*data(), batch_size=4, epochs=2, shuffle=False, verbose=0)
    return model


def test_ids_of_64_bits_get_rows_of_their_own(strategy, trained):
    table = trained.get_layer("table")
    found = table.statistics()
    state = table.export()
    assert sorted(state["ids"]) == sorted([FAR, NEAR, 7, -8, 2])
    assert (found["rows"], found["created"], found["hits"]) == (5, 5, 5)
    # The same model of one table with five rows, trained here.
    local = keras.Sequential(
        [
            keras.Input((3,), dtype="int32"),
            rx.layers.ShardedEmbedding(5, WIDTH, combiner="sqrtn"),
            keras.layers.Dense(1, kernel_initializer="ones"),
        ]
    )
    local.compile("adagrad", "mse")
    ids, targets = data()
    numbers = np.array([FAR, NEAR, 7, -8, 2])
    begun = rx.layers.DynamicTable(WIDTH, seed=3)(numbers)
    local.layers[0].embeddings.assign(begun)
    rows = np.where(ids == -1, -1, (ids[..., None] == numbers).argmax(-1))
    local.fit(rows, targets, batch_size=4, epochs=2, shuffle=False, verbose=0)
    order = [state["ids"].tolist().index(one) for one in numbers]
    np.testing.assert_allclose(
        state["values"][order], local.layers[0].embeddings.numpy(), rtol=1e-5, atol=1e-6
    )
    np.testing.assert_allclose(
        trained.predict(ids, verbose=0), local.predict(rows, verbose=0), rtol=1e-5, atol=1e-6
    )


def test_only_training_gives_rows(trained):
    ids, targets = data()
    table = trained.get_layer("table")
    before = table.statistics()
    trained.predict(ids + 100, verbose=0)
    trained.evaluate(ids + 100, targets, verbose=0)
    assert table.statistics()["rows"] == before["rows"]
    begun = rx.layers.DynamicTable(WIDTH, seed=3)(np.array([FAR + 100]))
    np.testing.assert_array_equal(table(np.array([[FAR + 100, -1, -1]])), begun)


def test_rows_are_saved_and_restored(started, trained, tmp_path):
    ids, targets = data()
    expected = trained.predict(ids, verbose=0)
    trained.save(tmp_path / "model.keras")
    rx.train.Checkpoint(model=trained).write(tmp_path / "checkpoint")
    saved = trained.get_layer("table").export()
    here = keras.models.load_model(tmp_path / "model.keras").get_layer("table")
    assert here.statistics()["rows"] == 5
    np.testing.assert_array_equal(here(ids), trained.get_layer("table")(ids))

    strategy = started(servers=3)
    with strategy.scope():
        model = keras.models.load_model(tmp_path / "model.keras")
        other = made_model()
    np.testing.assert_allclose(model.predict(ids, verbose=0), expected, rtol=1e-6)
    rx.train.Checkpoint(model=other).read(tmp_path / "checkpoint").assert_consumed()
    found = other.get_layer("table").export()
    order, theirs = np.argsort(found["ids"]), np.argsort(saved["ids"])
    for name in ("ids", "values", "slot_0"):
        np.testing.assert_array_equal(found[name][order], saved[name][theirs])
    # The optimizer that comes to them goes on with what it had.
    for one in (other, trained):
        one.train_on_batch(ids, targets)
    last = trained.get_layer("table")(ids)
    np.testing.assert_allclose(other.get_layer("table")(ids), last, rtol=1e-5, atol=1e-6)


def test_a_plain_model_answers_the_same(strategy, tmp_path):
    ids = np.array([[5, 7, -1], [7, -1, -1], [-9, 5, 5]], "int32")
    with strategy.scope():
        model = made_model("sgd")
        table = rx.layers.ShardedEmbedding(8, 2, name="plain")
        inputs = model.inputs[0]
        two = keras.Model(inputs, [model.outputs[0], table(keras.ops.maximum(inputs, 0))])
    empty = rx.layers.to_plain(two)  # no id is known yet
    assert empty.get_layer("table").embeddings.shape == (2, WIDTH)
    model.fit(ids, np.ones((3, 1)), verbose=0)
    rx.layers.to_plain(two).save(tmp_path / "plain.keras")
    plain = keras.models.load_model(tmp_path / "plain.keras")
    assert type(plain.get_layer("plain")) is keras.layers.Embedding
    for found, expected in zip(plain(ids), two.predict(ids, verbose=0), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    # Rows begin as numbers around 0, which is what an unknown id gets; the bias is left.
    unknown = plain(np.array([[4, -1, -1]], "int32"))[0]
    np.testing.assert_allclose(unknown[0], model.layers[-1].bias.numpy(), rtol=1e-5)


def test_a_plain_model_keeps_the_functions_of_lambda_layers(strategy):
    ids = np.array([[5, 7, -1], [7, -1, -1]], "int32")
    with strategy.scope():
        inputs = keras.Input((3,), dtype="int32")
        rows = rx.layers.DynamicTable(WIDTH, combiner="mean")(inputs)
        double = keras.layers.Lambda(
            lambda row, by: row * by, arguments={"by": 2.0}, output_shape=(WIDTH,), name="double"
        )
        model = keras.Model(inputs, keras.layers.Activation("relu", name="last")(double(rows)))
        model.compile("sgd", "mse")
    model.fit(ids, np.ones((2, WIDTH)), verbose=0)
    plain = rx.layers.to_plain(model)
    np.testing.assert_allclose(plain(ids), model.predict(ids, verbose=0), rtol=1e-5, atol=1e-6)
    inner = keras.Model(plain.inputs[0], plain.get_layer("double").output)
    assert keras.ops.shape(inner(ids)) == (2, WIDTH)
    assert plain.get_layer("last") is not model.get_layer("last")


def test_bounds_are_kept_on_all_servers_together(strategy):
    with strategy.scope():
        table = rx.layers.DynamicTable(WIDTH, max_rows=32, on_disk=True)
        table.build(None)
    optimizer = keras.optimizers.SGD(1.0)

    @rx.function
    def step(ids):
        _, grads = rx.value_and_grad(lambda: table(ids).sum(), [table.embeddings])()
        optimizer.apply(grads, [table.embeddings])

    coordinator = rx.coordinator.ClusterCoordinator(strategy)
    begun = rx.layers.DynamicTable(WIDTH)(np.array([4]))
    rng = np.random.default_rng(0)
    for _ in range(30):  # 4 is in each batch, and stays
        coordinator.schedule(step, args=(np.array([4, *rng.choice(1000, 5) + 9]),))
    coordinator.join()
    found = table.statistics()
    assert found["rows"] <= 32
    assert found["created"] - found["evicted"] == found["rows"]
    assert found["evicted"] > 50
    np.testing.assert_allclose(table(np.array([4])), begun - 30.0, rtol=1e-5)


def test_what_a_dynamic_table_cannot_do(strategy, trained):
    ids, _ = data()
    with pytest.raises(UsageError, match="int64"):
        trained.get_layer("table")(ids.astype("float32"))
    with pytest.raises(UsageError, match="`padding_value`"):
        rx.layers.DynamicTable(WIDTH, combiner="sum", padding_value=None)
    with pytest.raises(UsageError, match="32 bits"):
        rx.layers.to_plain(trained)
    with strategy.scope(), pytest.raises(UsageError, match="max_rows"):
        rx.layers.DynamicTable(WIDTH, max_rows=1).build(None)
    with pytest.raises(UsageError, match="to_plain"):
        made_model().predict(ids, verbose=0)
    with strategy.scope():
        table = rx.layers.DynamicTable(WIDTH)
        table.build(None)
    doubled = rx.function(lambda ids: table(ids * 2).sum())
    coordinator = rx.coordinator.ClusterCoordinator(strategy)
    with pytest.raises(UsageError, match="32 bits"):
        coordinator.fetch(coordinator.schedule(doubled, args=(ids,)))
    with pytest.raises(UsageError, match="32 bits"):
        coordinator.join()

    optimizer = keras.optimizers.Lamb()

    @rx.function
    def together(ids):
        _, grads = rx.value_and_grad(lambda: table(ids).sum(), [table.embeddings])()
        optimizer.apply(grads, [table.embeddings])

    with pytest.raises(UsageError, match="in shards"):
        coordinator.schedule(together, args=(ids,))


@keras.saving.register_keras_serializable(package="tests")
class Inside(keras.layers.Layer):
    """A layer that calls a table in its own code."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.table = rx.layers.DynamicTable(WIDTH)

    def build(self, input_shape):
        self.table.build(input_shape)

    def call(self, inputs):
        return self.table(inputs)


def test_only_a_model_that_can_be_taken_apart_becomes_plain():
    class Own(keras.Model):
        def call(self, inputs):
            return inputs

    with pytest.raises(UsageError, match="functional or sequential model"):
        rx.layers.to_plain(Own())
    ids = keras.Input((3,), dtype="int32")
    with pytest.raises(UsageError, match="Make it a layer"):
        rx.layers.to_plain(keras.Model(ids, Inside()(ids)))
