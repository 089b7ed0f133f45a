"""Programs that run under one process or several and give what can be compared: numbers, lists.

Each takes a strategy. Workers run them all, one after another, in processes of their own.
"""

import contextlib
import glob
import json
import os
import tempfile
import time
from pathlib import Path

import jax
import keras
import numpy as np

import replicax as rx


def images(rows=37):
    sample = np.random.default_rng(0)
    x = sample.normal(size=(rows, 8, 8, 1)).astype("float32")
    return x, sample.integers(0, 3, size=rows)


def scope_of(strategy):
    return strategy.scope() if strategy else contextlib.nullcontext()


def conv_net(strategy, *, dropout=0.0):
    """Only the chief's seed counts, so each worker has another."""
    with scope_of(strategy):
        keras.utils.set_random_seed(7 + worker())
        model = keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                keras.layers.Conv2D(4, 3, use_bias=False),
                keras.layers.BatchNormalization(),
                keras.layers.ReLU(),
                keras.layers.Flatten(),
                keras.layers.Dropout(dropout),
                keras.layers.Dense(3),
            ]
        )
        model.compile(
            keras.optimizers.SGD(0.1, momentum=0.9),
            keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    return model


def worker():
    return jax.process_index()


def weights(model):
    return [np.asarray(value) for value in model.get_weights()]


def fit_arrays(strategy):
    """Uneven batches, shuffled; evaluate and predict of them, and of a single row."""
    x, y = images()
    model = conv_net(strategy, dropout=0.25)
    history = model.fit(x, y, batch_size=8, epochs=2, verbose=0).history
    return {
        "history": history,
        "weights": weights(model),
        "evaluate": model.evaluate(x, y, batch_size=8, verbose=0),
        "predict": model.predict(x, batch_size=8, verbose=0),
        "one row": model.predict(x[:1], verbose=0),
        "one batch": model.train_on_batch(x[:5], y[:5]),
    }


def fit_dataset(strategy):
    """A data set with an order that nobody gave a seed for, handed over as it is."""
    x, y = images()
    model = conv_net(strategy)
    np.random.seed(worker())
    dataset = rx.data.Dataset.from_tensor_slices((x, y)).shuffle(37).batch(8)
    history = model.fit(dataset, epochs=2, validation_data=dataset, verbose=0).history
    weighted = conv_net(strategy)
    weighted.fit(dataset.take(2), class_weight={0: 1.0, 1: 2.0, 2: 0.5}, verbose=0)
    rest = conv_net(strategy)
    begun = iter(rx.data.Dataset.from_tensor_slices((x, y)).shuffle(37).batch(8))
    next(begun)
    rest.fit(begun, epochs=2, verbose=0)  # four batches, and a whole pass
    trained = {"weights": weights(model), "weighted": weights(weighted), "rest": weights(rest)}
    return {"history": history, "steps": int(rest.optimizer.iterations), **trained}


def fit_distributed(strategy):
    x, y = images()
    model = conv_net(strategy)
    dataset = rx.data.Dataset.from_tensor_slices((x, y)).batch(8)
    if strategy:
        dataset = strategy.experimental_distribute_dataset(dataset)
    model.fit(dataset, epochs=1, verbose=0)
    return {"weights": weights(model), "predict": model.predict(dataset, verbose=0)}


def variants(strategy):
    """Other ways through `fit`, saving, and variables that are assigned."""
    x, y = images(16)

    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return 2

        def __getitem__(self, number):
            return x[8 * number : 8 * number + 8], y[8 * number : 8 * number + 8]

    def trained(data, labels=None, *, fitting=None, **compiling):
        model = conv_net(strategy)
        with scope_of(strategy):
            model.compile("sgd", model.loss, **compiling)
        model.fit(
            data,
            labels,
            batch_size=6 if labels is not None else None,
            verbose=0,
            shuffle=False,
            **(fitting or {}),
        )
        return model

    sample_weight = np.linspace(0, 1, 16).astype("float32")
    several = trained(x, y, steps_per_execution=2)
    with tempfile.TemporaryDirectory() as folder:
        several.save(os.path.join(folder, "model.keras"))
        with scope_of(strategy):
            loaded = keras.models.load_model(os.path.join(folder, "model.keras"))
    loaded.fit(x, y, verbose=0, shuffle=False)
    loaded.set_weights([2 * value for value in loaded.get_weights()])
    return {
        "several steps at once": weights(several),
        "loaded": weights(loaded),
        "eager": weights(trained(x, y, run_eagerly=True)),
        "weighted": weights(trained(x, y, fitting={"sample_weight": sample_weight})),
        "batches": weights(trained(Batches())),
    }


def custom_loop(strategy):
    """Gradients by hand, Adam and a metric inside `run`, the last batch uneven."""
    sample = np.random.default_rng(1)
    x, y = (
        sample.normal(size=(22, 3)).astype("float32"),
        sample.normal(size=(22, 1)).astype("float32"),
    )
    with strategy.scope():
        keras.utils.set_random_seed(3 + worker())
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4), keras.layers.Dense(1)])
        optimizer = keras.optimizers.Adam(0.1)
        metric = keras.metrics.MeanSquaredError()

    def step(x, y, rows):
        def loss_fn():
            error = (model(x, training=True) - y)[:, 0] ** 2
            return rx.nn.compute_average_loss(error, global_batch_size=rows)

        loss, grads = rx.value_and_grad(loss_fn, model.trainable_variables)()
        optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))
        metric.update_state(y, model(x))
        return loss

    losses = []
    dataset = rx.data.Dataset.from_tensor_slices((x, y)).batch(8)
    batches = strategy.experimental_distribute_dataset(dataset)
    for rows, batch in zip((8, 8, 6), batches, strict=True):
        loss = strategy.run(step, args=(*batch, rows))
        losses.append(float(strategy.reduce("SUM", loss, axis=None)))
    return {"losses": losses, "weights": weights(model), "metric": float(metric.result())}


def warmed_up(strategy):
    """A function that is compiled before its first batch, which replicas do not divide evenly."""
    data = rx.data.Dataset.from_tensor_slices(np.arange(20.0, dtype="float32")).batch(10)
    batches = strategy.experimental_distribute_dataset(data)

    @rx.function
    def step(batch):
        return strategy.reduce("SUM", strategy.run(lambda rows: rows.sum(), (batch,)), axis=None)

    said = step.warm_up(batches)
    return {"said": said, "sums": [float(step(batch)) for batch in batches], "n": step.num_traces}


def compressed(strategy):
    """The same loop, and `fit`, with gradients of which only bytes travel."""
    options = rx.experimental.CommunicationOptions(compression="int8")
    small = rx.MultiWorkerMirroredStrategy(communication_options=options)
    x, y = images(16)
    model = conv_net(small)
    history = model.fit(x, y, batch_size=8, epochs=2, verbose=0).history
    found = {"loop": custom_loop(small), "history": history, "weights": weights(model)}
    checkpoint = rx.train.Checkpoint(model=model)
    path = checkpoint.write(f"{tempfile.mkdtemp()}/here")
    for name in ("went on", "went on again"):
        model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
        found[name] = weights(model)
        checkpoint.read(path)
    return found


def collectives(strategy):
    """What `run`, `reduce`, `gather` and values say, even and uneven."""
    replicas = strategy.num_replicas_in_sync
    (even,) = strategy.experimental_distribute_dataset([np.arange(3.0 * replicas)])
    (uneven,) = strategy.experimental_distribute_dataset([np.arange(3.0 * replicas - 2)])
    values = strategy.experimental_distribute_values_from_function(
        lambda context: np.float32(context.replica_id_in_sync_group)
    )

    def fn(x):
        ctx = rx.get_replica_context()
        total = ctx.all_reduce("SUM", x.sum())
        return total, x * 2, ctx.all_gather(x, axis=0), ctx.replica_id_in_sync_group

    found = {}
    for name, batch in (("even", even), ("uneven", uneven)):
        total, doubled, gathered, _ = strategy.run(fn, args=(batch,))
        found[name] = {
            "total": float(total),
            "doubled": np.asarray(strategy.gather(doubled, axis=0)),
            "gathered": np.asarray(strategy.experimental_local_results(gathered)[0]),
            "mean": float(strategy.reduce("MEAN", doubled, axis=0)),
            "local": [np.asarray(v) for v in strategy.experimental_local_results(doubled)],
        }
    found["sum of values"] = float(strategy.reduce("SUM", values, axis=None))
    ids = strategy.run(lambda: rx.get_replica_context().replica_id_in_sync_group)
    found["ids"] = [int(v) for v in strategy.experimental_local_results(ids)]
    step = rx.function(lambda batch: (strategy.run(fn, (batch,))[1], 2.0 * batch.stacked.sum()))
    doubled, twice = step(even)
    found["of a function"] = [np.asarray(v).tolist() for v in doubled.values], float(twice)
    found["repr"] = repr(ids)
    found["on one device"] = float(strategy.extended.reduce_to("SUM", values, "CPU:1"))
    host = rx.InputOptions(experimental_fetch_to_device=False)
    (batch,) = strategy.experimental_distribute_dataset([np.arange(3.0 * replicas - 2)], host)
    found["of host"] = float(
        strategy.reduce("SUM", strategy.run(lambda x: x.sum(), (batch,)), None)
    )
    return found


def watched(strategy):
    """A worker that is slow between its steps; a model, a function and replicas that print."""
    lines, x = [], np.ones((64, 3), "float32")

    class Speaking(keras.layers.Layer):
        def call(self, x):
            rx.print("rows", keras.ops.sum(x), output_stream=lines.append)
            return x

    class Slow(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            time.sleep(0.4 * worker())  # the others wait for the last worker, in every step

    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), Speaking(), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    with tempfile.TemporaryDirectory() as folder:
        monitor = rx.callbacks.ReplicaMonitor(folder, tensorboard=False)
        how = {"batch_size": 8, "verbose": 0, "callbacks": [monitor, Slow()]}
        history = model.fit(x, x[:, :1], **how).history
        written = os.path.exists(os.path.join(folder, "monitor.jsonl"))
    jax.effects_barrier()
    said = [sorted(set(lines))]
    lines.clear()
    rx.function(lambda x: rx.print("x", x, output_stream=lines.append))(np.float32(1))
    strategy.run(lambda: rx.print("y", jax.numpy.float32(2), output_stream=lines.append))
    jax.effects_barrier()
    return {"history": history, "written": written, "said": [*said, sorted(lines)]}


def variables(strategy):
    with strategy.scope():
        mean = keras.Variable(1.0 + worker(), aggregation="mean")
        total = keras.Variable(0.0, aggregation="sum")
    outside = keras.Variable(2.0 + worker())

    def fn():
        replica = rx.get_replica_context().replica_id_in_sync_group
        mean.assign_add(replica.astype("float32"))
        total.assign_add(1.0)
        return mean * outside

    product = strategy.run(fn)
    with strategy.scope():
        scaled = rx.function(lambda: mean * 2.0)()
    return {
        "mean": float(mean.value),
        "total": float(total.value),
        "outside": float(outside.value),
        "product": float(strategy.reduce("MEAN", product, None)),
        "scaled": float(scaled),
    }


def own_pipelines(strategy):
    """Each worker makes its own batches, of different number and size."""
    rows = []

    def dataset_fn(context):
        me = context.input_pipeline_id
        return [np.full(1 + me, 10.0 * me + number) for number in range(4 + 2 * me)]

    for batch in strategy.distribute_datasets_from_function(dataset_fn):
        doubled = strategy.run(lambda x: x * 2, args=(batch,))
        rows.append(np.asarray(strategy.gather(doubled, axis=0)).tolist())
    return rows


def files(strategy, folder):
    """FILE sharding: each worker reads its own files, of different length."""
    paths = sorted(os.path.join(folder, name) for name in os.listdir(folder))
    dataset = rx.data.TextLineDataset(paths).map(lambda line: np.int32(int(line))).batch(4)
    distributed = strategy.experimental_distribute_dataset(dataset)
    rows = [
        np.asarray(strategy.gather(strategy.run(lambda x: x, (batch,)), 0)).tolist()
        for batch in distributed
    ]
    again = sum(int(strategy.reduce("SUM", b, axis=0)) for b in distributed)
    return {"rows": rows, "again": again, "policy": distributed.plan().policy.name}


class Tracker(keras.callbacks.Callback):
    """As those of Weights & Biases and MLflow: a run begins where it is made, epochs are logged."""

    def __init__(self, folder):
        super().__init__()
        self.run = tempfile.mkdtemp(dir=folder)

    def on_epoch_end(self, epoch, logs=None):
        Path(self.run, str(epoch)).write_text(json.dumps(logs))


def tracked(strategy, folder):
    """A tracker of the chief alone, as the documentation shows it; TensorBoard is of all."""
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    callbacks = [rx.callbacks.TensorBoard(os.path.join(folder, "board"))]
    runs = os.path.join(folder, "runs")
    if strategy.extended.should_save_summary:
        os.makedirs(runs)
        callbacks.append(Tracker(runs))
    x = np.ones((16, 3), "float32")
    history = model.fit(x, x[:, :1], batch_size=8, epochs=2, verbose=0, callbacks=callbacks)
    logged = [json.loads(Path(file).read_text()) for file in sorted(glob.glob(f"{runs}/*/*"))]
    events = glob.glob(f"{folder}/board/**/*tfevents*", recursive=True)
    return {"losses": history.history["loss"], "logged": logged, "events": len(events)}


def batch_sizes(strategy):
    """One by a memory that is named, one by what the workers have."""
    with strategy.scope():
        model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(128)])
        model.compile("sgd", "mse")
    by_name = rx.find_batch_size(model, memory=1_000_000)
    return [by_name, rx.find_batch_size(model, max_batch_size=1001)]


class Calling(keras.layers.Layer):
    """Asks Python, which raises on some workers when it is told to."""

    raises = ()

    def call(self, x):
        kind = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return jax.pure_callback(self.answer, kind, jax.lax.stop_gradient(x))

    def answer(self, x):
        if worker() in self.raises:
            raise LookupError(f"not today, says {worker()}")
        return np.asarray(x)


def python_raises(strategy):
    """What each worker meets if Python that a step calls raises on one; and that both go on."""
    with strategy.scope():
        calling = Calling()
        model = keras.Sequential([keras.Input((4,)), calling, keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    x, y = np.ones((8, 4), "float32"), np.zeros((8, 1), "float32")

    def step():
        def loss():
            return keras.ops.mean((model(x) - y) ** 2)

        _, gradients = rx.value_and_grad(loss, model.trainable_variables)()
        model.optimizer.apply(gradients, model.trainable_variables)

    ways = {
        "fit": (0, lambda: model.fit(x, y, batch_size=8, verbose=0)),  # the first device asks
        "run": (1, lambda: strategy.run(step)),
        "function": (1, rx.function(lambda: strategy.run(step))),
    }
    found = {}
    for name, (culprit, way) in ways.items():
        way()
        before = weights(model)
        calling.raises = (culprit,)
        try:
            way()
        except (LookupError, rx.errors.WorkerLost) as error:
            said = type(error).__name__, str(error), getattr(error, "workers", ())
        calling.raises = ()
        kept = all(map(np.array_equal, weights(model), before))
        way()
        found[name] = *said, kept, not np.array_equal(weights(model)[0], before[0])
    return {"said": found, "weights": weights(model)}


SCENARIOS = (
    batch_sizes,
    fit_dataset,
    fit_distributed,
    variants,
    custom_loop,
    compressed,
    collectives,
    python_raises,
    variables,
    own_pipelines,
    watched,
    warmed_up,
)


def in_worker(folder, names):
    strategy = rx.MultiWorkerMirroredStrategy()
    found = {name: globals()[name](strategy) for name in names}
    if len(names) > 1:
        found["files"] = files(strategy, folder)
        found["tracked"] = tracked(strategy, f"{folder}_tracked")
    extended = strategy.extended
    found["workers"] = jax.process_count(), strategy.num_replicas_in_sync
    found["checkpoints"] = extended.should_checkpoint, extended.should_save_summary
    return found
