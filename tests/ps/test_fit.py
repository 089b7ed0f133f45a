"""`fit`, `evaluate` and `predict` by closures: one device's numbers, whatever happens meanwhile."""

import contextlib

import jax
import keras
import numpy as np
import pytest

import replicax as rx
from replicax._core.errors import UsageError
from replicax._ps.steps import ClosureSteps

from helpers import assert_trees_close

SAMPLE = np.random.default_rng(0)
X = SAMPLE.normal(size=(40, 4)).astype("float32")
Y = SAMPLE.integers(0, 3, 40).astype("int32")
QUIET = {"verbose": 0, "shuffle": False}
Dataset = rx.data.Dataset


@pytest.fixture(scope="module")
def strategy():
    """Two workers and two servers, of which each gradient is applied before the next is made."""
    made = rx.ParameterServerStrategy(engine="threads", num_workers=2, num_ps=2, max_staleness=0)
    yield made
    made.close()


def of(owner, make):
    """A model that `make` makes and compiles, in the scope of a strategy or in none."""
    keras.utils.set_random_seed(3)
    with owner.scope() if owner else contextlib.nullcontext():
        return make()


def compiled(model, optimizer, **options):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"], **options)
    return model


def small():
    layers = [keras.Input((4,)), keras.layers.Dense(3)]
    return compiled(keras.Sequential(layers), keras.optimizers.SGD(0.1))


@pytest.fixture(scope="module")
def one_pair(strategy):
    return of(None, small), of(strategy, small)


@pytest.fixture
def pair(one_pair):
    """Two models of the same weights: one of no strategy, and one of parameter servers."""
    kernel = np.linspace(-1, 1, 12, dtype="float32").reshape(4, 3)
    for model in one_pair:
        model.set_weights([kernel, np.zeros(3, "float32")])
    return one_pair


def state(model):
    return [np.array(v.value) for v in [*model.variables, *model.optimizer.variables]]


def kill(strategy, worker):
    strategy.coordination.engine.cluster.kill("worker", worker)


class At(keras.callbacks.Callback):
    """Does something after a batch, or before an epoch."""

    def __init__(self, call, *, batch=2, kind="train"):
        super().__init__()
        hook = f"on_{kind}_batch_end"
        setattr(self, hook, lambda number, logs=None: call() if number == batch else None)


def regularized():
    layers = [
        keras.Input((4,)),
        keras.layers.Dense(6, activation="relu", kernel_regularizer="l2"),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.3),
        keras.layers.ActivityRegularization(l2=0.01),
        keras.layers.Dense(3),
    ]
    optimizer = keras.optimizers.AdamW(0.01, global_clipnorm=0.5, use_ema=True)
    return compiled(keras.Sequential(layers), optimizer, weighted_metrics=["accuracy"])


class OwnStep(keras.Model):
    """Made in `fit`, with a step of its own, whose logs are no metrics."""

    def __init__(self):
        super().__init__()
        self.hidden, self.out = keras.layers.Dense(5, activation="tanh"), keras.layers.Dense(3)

    def call(self, x, training=False):
        return self.out(self.hidden(x))

    def train_step(self, state, data):
        trained, fixed, kept, metrics = state
        x, y = data

        def loss_of(trained, fixed):
            logits, fixed = self.stateless_call(trained, fixed, x, training=True)
            return self.compute_loss(x, y, logits), fixed

        (loss, fixed), grads = jax.value_and_grad(loss_of, has_aux=True)(trained, fixed)
        trained, kept = self.optimizer.stateless_apply(kept, grads, trained)
        return {"last": loss}, (trained, fixed, kept, metrics)


def own_step():
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True)
    return compiled(OwnStep(), optimizer, steps_per_execution=2)


def half():
    keras.mixed_precision.set_global_policy("mixed_bfloat16")
    try:
        layers = [
            keras.Input((4,)),
            keras.layers.Dense(5, activation="relu"),
            keras.layers.Dense(3),
        ]
        schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 3, 0.5)
        return compiled(keras.Sequential(layers), keras.optimizers.RMSprop(schedule))
    finally:
        keras.mixed_precision.set_global_policy("float32")


@pytest.mark.parametrize(
    ("make", "how"),
    [
        (regularized, {"class_weight": {0: 1.0, 1: 2.0, 2: 0.5}, "validation_split": 0.2}),
        (own_step, {}),
        # The last batch is not full.
        (half, {"sample_weight": np.linspace(0, 1, 40), "batch_size": 16}),
    ],
)
def test_without_staleness_it_is_the_training_of_one_device(strategy, make, how):
    found = []
    for model in (of(None, make), of(strategy, make)):
        history = model.fit(X, Y, epochs=2, **QUIET, **{"batch_size": 8, **how}).history
        after = state(model)  # now: Keras' EMA leaves two variables with one array
        scores = model.evaluate(X, Y, batch_size=8, verbose=0)
        found.append((history, after, scores, model.predict(X, batch_size=8, verbose=0)))
    # XLA leaves out casts to `bfloat16` and back, in some programs and not in others.
    close = 2**-6 if make is half else 1e-6
    assert_trees_close(found[1], found[0], rtol=close, atol=close)


class Rows(keras.utils.PyDataset):
    """Fills one array again and again."""

    def __init__(self):
        super().__init__(workers=1)
        self.x, self.y = np.empty((8, 4), "float32"), np.empty(8, "int32")

    def __len__(self):
        return 5

    def __getitem__(self, index):
        self.x[:], self.y[:] = X[index * 8 : index * 8 + 8], Y[index * 8 : index * 8 + 8]
        return self.x, self.y


def generated():
    while True:
        for start in range(0, 40, 8):
            yield X[start : start + 8], Y[start : start + 8]


def test_whatever_holds_batches_can_be_trained_on(strategy, pair):
    local, ours = pair
    dataset = Dataset.from_tensor_slices((X, Y)).batch(8)
    distributed = strategy.experimental_distribute_dataset(dataset)
    start = local.get_weights()
    local.fit(X, Y, batch_size=8, epochs=2, **QUIET)
    for data, how in [
        (dataset, {}),
        (distributed, {}),
        (Rows(), {}),
        (generated(), {"steps_per_epoch": 5}),
    ]:
        ours.set_weights(start)
        ours.fit(data, epochs=2, **QUIET, **how)
        assert_trees_close(ours.get_weights(), local.get_weights(), rtol=1e-6)
    scores = local.evaluate(X, Y, batch_size=8, verbose=0)
    for data in (dataset, distributed):
        assert_trees_close(ours.evaluate(data, verbose=0), scores, rtol=1e-6)
    inputs = Dataset.from_tensor_slices(X).batch(8)
    expected = local.predict(X, batch_size=8, verbose=0)
    assert_trees_close(ours.predict(inputs, verbose=0), expected, rtol=1e-6)
    with pytest.raises(UsageError, match="you need to pass this dataset to ClusterCoordinator"):
        iter(distributed)


def test_single_batches(pair):
    found = [
        (
            model.train_on_batch(X[:8], Y[:8], return_dict=True),
            model.train_on_batch(X[8:16], Y[8:16], class_weight={0: 1.0, 1: 2.0, 2: 3.0}),
            model.test_on_batch(X[:8], Y[:8]),
            model.predict_on_batch(X[:8]),
            model.get_weights(),
        )
        for model in pair
    ]
    assert_trees_close(found[1], found[0], rtol=1e-6, atol=1e-6)


def test_callbacks_see_what_they_see_on_one_device(pair, tmp_path, capsys):
    found = []
    for name, model in zip(("local", "ours"), pair, strict=True):
        folder, callbacks = tmp_path / name, keras.callbacks
        model.optimizer.learning_rate = 0.5
        folder.mkdir()
        history = model.fit(
            X,
            Y,
            batch_size=8,
            epochs=4,
            shuffle=False,
            verbose=1,
            validation_data=(X[:8], Y[:8]),
            callbacks=[
                callbacks.ModelCheckpoint(folder / "best.weights.h5", save_weights_only=True),
                callbacks.ModelCheckpoint(folder / "model.keras", save_freq=3),
                callbacks.EarlyStopping("loss", patience=1, mode="max", restore_best_weights=True),
                callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.5),
                callbacks.ReduceLROnPlateau("loss", patience=0, factor=0.1),
                callbacks.TerminateOnNaN(),
                callbacks.CSVLogger(folder / "log.csv"),
                rx.callbacks.TensorBoard(folder / "board", update_freq=2),
            ],
        )
        saved = keras.models.load_model(folder / "model.keras")
        model.load_weights(folder / "best.weights.h5")
        log = float((folder / "log.csv").read_text().split(",")[-1])
        rates = float(saved.optimizer.learning_rate), float(model.optimizer.learning_rate)
        found.append((history.history, (saved.get_weights(), model.get_weights()), rates, log))
        assert list((folder / "board").rglob("events*"))
        model.optimizer.learning_rate = 0.1
    assert_trees_close(found[1], found[0], rtol=1e-6, atol=1e-6)
    assert capsys.readouterr().out.count("val_loss") > 2


class Stopped(Exception):
    """Ends a training."""


def stop():
    raise Stopped


def interrupt():
    raise KeyboardInterrupt


def test_a_training_that_was_ended_goes_on_in_the_middle_of_an_epoch(pair, tmp_path):
    local, ours = pair
    start, how = local.get_weights(), {"batch_size": 8, "epochs": 2, **QUIET}
    local.fit(X, Y, **how)
    backup = rx.callbacks.BackupAndRestore(tmp_path / "backup", every_batches=1)
    with pytest.raises(Stopped):
        ours.fit(X, Y, callbacks=[backup, At(stop)], **how)
    ours.set_weights(start)
    backup = rx.callbacks.BackupAndRestore(tmp_path / "backup", every_batches=1)
    history = ours.fit(X, Y, callbacks=[backup], **how)
    assert_trees_close(ours.get_weights(), local.get_weights(), rtol=1e-6)
    assert len(history.history["loss"]) == 2


def test_a_failure_leaves_the_model_and_the_workers_as_they_were(pair):
    local, ours = pair
    start = local.get_weights()

    def batches(rows):
        for number in range(5):
            yield X[:8], Y[:rows] if number == 2 else Y[:8]

    with pytest.raises(Exception, match="shape"):
        ours.fit(batches(5), steps_per_epoch=5, **QUIET)
    with pytest.raises(KeyboardInterrupt):
        ours.fit(X, Y, batch_size=8, callbacks=[At(interrupt, batch=1)], **QUIET)
    for model in pair:
        model.set_weights(start)
        model.fit(X, Y, batch_size=8, **QUIET)
    assert_trees_close(ours.get_weights(), local.get_weights(), rtol=1e-6)


def test_a_result_that_is_lost_while_others_are_under_way_leaves_nothing_behind(pair, monkeypatch):
    local, ours = pair
    start = local.get_weights()

    def lose(steps):
        raise RuntimeError("lost")

    with monkeypatch.context() as patch:
        patch.setattr(ClosureSteps, "_take_one", lose)
        with pytest.raises(RuntimeError, match="lost"):
            ours.fit(X, Y, batch_size=8, epochs=3, **QUIET)
    assert not ours.train_function._waiting
    for model in pair:
        model.set_weights(start)
        model.fit(X, Y, batch_size=8, **QUIET)
    assert_trees_close(ours.get_weights(), local.get_weights(), rtol=1e-6)


def test_evaluation_counts_each_sample_once_although_a_worker_dies(strategy, pair):
    local, ours = pair
    found = []
    for model, callbacks in [
        (local, ([], [])),
        (
            ours,
            (
                [At(lambda: kill(strategy, 0), kind="test")],
                [At(lambda: kill(strategy, 1), kind="predict")],
            ),
        ),
    ]:
        scores = model.evaluate(X, Y, batch_size=8, verbose=0, callbacks=callbacks[0])
        found.append((scores, model.predict(X, batch_size=8, verbose=0, callbacks=callbacks[1])))
    assert_trees_close(found[1], found[0], rtol=1e-6, atol=1e-6)


def test_workers_read_their_own_data(strategy, pair):
    local, ours = pair
    coordinator = rx.coordinator.ClusterCoordinator(strategy)
    dataset = Dataset.from_tensor_slices((X, Y)).batch(8)
    shared = coordinator.create_per_worker_dataset(dataset, shard="dynamic")
    steps = ours.optimizer.iterations.numpy()
    history = ours.fit(shared, epochs=2, callbacks=[At(lambda: kill(strategy, 0))], **QUIET)
    assert len(history.history["loss"]) == 2 and ours.optimizer.iterations.numpy() == steps + 10
    local.set_weights(ours.get_weights())
    scores = local.evaluate(X, Y, batch_size=8, verbose=0)
    assert_trees_close(ours.evaluate(shared, verbose=0), scores, rtol=1e-6)
    with pytest.raises(UsageError, match="scope of a ParameterServerStrategy"):
        local.fit(shared, **QUIET)


class Count(keras.layers.Layer):
    """Counts how often each of the rows of `X` was trained on."""

    def build(self, shape):
        self.seen = self.add_weight(shape=(40,), initializer="zeros", trainable=False)

    def call(self, x, training=False):
        if training:
            rows = keras.ops.all(x[:, None] == X[None], axis=-1)
            self.seen.assign_add(keras.ops.sum(keras.ops.cast(rows, "float32"), 0))
        return x


def test_shared_data_is_gone_on_with_where_a_training_was_ended(strategy, tmp_path):
    def made():
        layers = [keras.Input((4,)), Count(), keras.layers.Dense(3)]
        return compiled(keras.Sequential(layers), keras.optimizers.SGD(0.1))

    coordinator = rx.coordinator.ClusterCoordinator(strategy)
    for calls in ([At(stop)], []):
        dataset = Dataset.from_tensor_slices((X, Y)).shuffle(40).batch(8)
        shared = coordinator.create_per_worker_dataset(dataset, shard="dynamic")
        model = of(strategy, made)
        backup = rx.callbacks.BackupAndRestore(tmp_path / "backup", every_batches=1)
        with pytest.raises(Stopped) if calls else contextlib.nullcontext():
            model.fit(shared, epochs=2, callbacks=[backup, *calls], **QUIET)
    assert model.layers[0].seen.numpy().tolist() == [2.0] * 40


def test_a_data_set_creator_makes_the_data_of_each_worker(strategy, pair):
    local, ours = pair
    start = local.get_weights()

    def dataset_fn(context):
        assert (context.num_input_pipelines, context.input_pipeline_id) == (1, 0)
        return Dataset.from_tensors((X[:8], Y[:8])).repeat(20)

    creator = rx.DatasetCreator(dataset_fn)
    how = {"epochs": 2, "class_weight": {0: 1.0, 1: 2.0, 2: 3.0}, **QUIET}
    for model in pair:
        model.set_weights(start)
        model.fit(creator, steps_per_epoch=3, validation_data=creator, validation_steps=2, **how)
    assert_trees_close(ours.get_weights(), local.get_weights(), rtol=1e-6)
    uneven = rx.DatasetCreator(lambda context: Dataset.from_tensor_slices((X, Y)).batch(9).repeat())
    assert ours.evaluate(uneven, steps=12, verbose=0)  # each worker meets a batch of four rows
    needed = "number of batches"
    steps, validation = "`steps_per_epoch` (or `steps`)", "`validation_steps`"
    for call, missing in (
        (lambda: ours.fit(creator, **QUIET), steps),
        (
            lambda: ours.fit(creator, steps_per_epoch=1, validation_data=creator, **QUIET),
            validation,
        ),
        (lambda: ours.predict(creator, verbose=0), steps),
    ):
        with pytest.raises(UsageError, match=needed) as caught:
            call()
        assert f"Pass {missing}" in str(caught.value)
    with pytest.raises(UsageError, match="`dataset_fn`.* a list"):
        rx.DatasetCreator([])


def test_python_on_workers_is_refused(strategy):
    for how, message in [
        ({"run_eagerly": True}, "a model compiled with run_eagerly=True"),
        ({"jit_compile": False}, "a model compiled with jit_compile=False"),
    ]:
        model = of(strategy, small)
        model.compile("sgd", "sparse_categorical_crossentropy", **how)
        with pytest.raises(UsageError, match=f"{message}"):
            model.fit(X, Y, **QUIET)


def test_the_staleness_of_an_epoch_is_in_the_logs(strategy, pair):
    local, ours = pair
    coordinator = rx.coordinator.ClusterCoordinator(strategy)
    before = coordinator.staleness().get(0, 0)
    staleness = rx.callbacks.Staleness()
    how = {"batch_size": 8, "epochs": 2, "callbacks": [staleness], **QUIET}
    history = ours.fit(X, Y, **how).history
    # Kernel and bias are on two servers, which count by themselves: of five steps ten updates.
    assert staleness.histograms == [{0: 10}, {0: 10}]
    assert history["staleness_mean"] == history["staleness_max"] == [0.0, 0.0]
    assert coordinator.staleness()[0] == before + 20
    with pytest.raises(UsageError, match="ParameterServerStrategy"):
        local.fit(X, Y, **how)
