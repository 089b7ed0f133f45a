"""Records what tf.distribute computes, for `test_parity.py`; the tests need no TensorFlow.

    python -m venv tf && tf/bin/pip install tensorflow==2.21.0
    tf/bin/python tests/parity/record_tf.py

writes `recorded.json` next to this file. Every strategy is recorded in a process of its own, since
two mirrored strategies in one TensorFlow process disturb each other. The CPU is made to look like
four devices. Inputs are written beside the results, so the tests need nothing but the file.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
os.environ["KERAS_BACKEND"] = "tensorflow"
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import keras
import numpy as np
import tensorflow as tf

RECORDED = Path(__file__).with_name("recorded.json")
# TensorFlow's CentralStorageStrategy gives what mirrored replicas give, but for two of its errors:
# it counts earlier batches of a metric again, and drops the last, incomplete step of a function.
NAMES = ("one_device", "mirrored_2", "mirrored_3", "mirrored_4")


def main() -> None:
    parser = argparse.ArgumentParser(description="Record what tf.distribute computes.")
    parser.add_argument("--part", help="record one part and print it (internal)")
    part = parser.parse_args().part
    if part in NAMES:
        json.dump(record(make(part)), sys.stdout)
        return
    if part:
        json.dump(plain(DIFFERENCES[part](make("mirrored_2"))), sys.stdout)
        return
    found = {
        "versions": {
            "tensorflow": tf.__version__,
            "keras": keras.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "strategies": {name: in_own_process(name) for name in NAMES},
        "differences": {name: in_own_process(name) for name in DIFFERENCES},
    }
    RECORDED.write_text(render(found) + "\n")


def in_own_process(part: str) -> object:
    print(part, flush=True)
    command = [sys.executable, __file__, "--part", part]
    child = subprocess.run(command, stdout=subprocess.PIPE, timeout=600, check=True)
    return json.loads(child.stdout)


def render(found: object, indent: str = "") -> str:
    """JSON with one line per case."""
    if isinstance(found, dict) and indent.count(" ") < 4:
        inner = indent + " "
        parts = [f"{inner}{json.dumps(k)}: {render(v, inner)}" for k, v in found.items()]
        return "{\n" + ",\n".join(parts) + f"\n{indent}}}"
    if isinstance(found, list) and found and isinstance(found[0], dict):
        inner = indent + " "
        return "[\n" + ",\n".join(f"{inner}{json.dumps(v)}" for v in found) + f"\n{indent}]"
    return json.dumps(found)


def make(name: str) -> tf.distribute.Strategy:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 4)
    if name == "one_device":
        return tf.distribute.OneDeviceStrategy("/cpu:1")
    count = int(name.removeprefix("mirrored_"))
    return tf.distribute.MirroredStrategy([f"/cpu:{index}" for index in range(count)])


def record(strategy: tf.distribute.Strategy) -> dict[str, list[dict]]:
    of_values = [
        reductions,
        gathers,
        all_reductions,
        all_gathers,
        gradients,
        splits,
        splits_from_function,
        average_losses,
        keras_losses,
    ]
    of_models = [metrics, optimizers, variables, training]
    if isinstance(strategy, tf.distribute.MirroredStrategy):
        of_models.append(returned)
    # Three replicas are there for the uneven splits, four for models on more than two.
    sections = {3: of_values, 4: of_models}.get(
        strategy.num_replicas_in_sync, of_values + of_models
    )
    return {section.__name__: list(section(strategy)) for section in sections}


# Values -----------------------------------------------------------------------------------------


def plain(value: object) -> object:
    """Arrays as nested lists of Python numbers, floats with the nine digits that float32 has."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, str | bool | None.__class__):
        return value
    array = np.asarray(value)
    if array.ndim:
        return [plain(inner) for inner in array]
    return float(f"{array.item():.9g}") if array.dtype.kind == "f" else array.item()


def distributed(strategy, components):
    """One component per replica, as float32."""
    arrays = [np.asarray(component, "float32") for component in components]
    return strategy.experimental_distribute_values_from_function(
        lambda context: tf.constant(arrays[context.replica_id_in_sync_group])
    )


def local(strategy, value) -> list:
    return plain([np.asarray(v) for v in strategy.experimental_local_results(value)])


def outcome(case: dict, compute) -> dict:
    """The case with its result, or with the error that came instead."""
    try:
        return {**plain(case), "result": plain(compute())}
    except Exception as error:  # whatever TensorFlow raises is what is recorded
        return {**plain(case), "error": type(error).__name__}


def nest_of(replicas: int) -> dict[str, list]:
    """Components for the reductions, by a name that says what they are."""
    each = range(replicas)
    return {
        "scalars": [r + 1.0 for r in each],
        "ones": [1.0 for _ in each],
        "vectors": [[r + 1.0, 2.0 * r] for r in each],
        "matrices": [(np.arange(6.0).reshape(2, 3) + 10 * r).tolist() for r in each],
        "uneven": [[r + 1.0] * (r + 1) for r in each],
        "with an empty one": [[1.0, 1.0] if r == 0 else [] for r in each],
    }


def reductions(strategy):
    for name, components in nest_of(strategy.num_replicas_in_sync).items():
        rank = np.ndim(components[0])
        axes = [None, *range(rank), *([-1] if rank else []), *([[0, 1]] if rank == 2 else [])]
        for axis in [*axes, 3]:
            for op in ("SUM", "MEAN") if axis != 3 else ("SUM",):
                case = {"of": name, "components": components, "op": op, "axis": axis}
                yield outcome(case, lambda c=case: reduced(strategy, c))
    for name, value in {"vector": [2.0, 3.0], "zeros": [0.0, 0.0]}.items():
        for axis in (None, 0):
            for op in ("SUM", "MEAN", "max"):
                case = {"of": f"plain {name}", "plain": value, "op": op, "axis": axis}
                yield outcome(
                    case,
                    lambda c=case: strategy.reduce(
                        c["op"], np.asarray(c["plain"], "float32"), c["axis"]
                    ),
                )


def reduced(strategy, case):
    axis = tuple(case["axis"]) if isinstance(case["axis"], list) else case["axis"]
    return strategy.reduce(case["op"], distributed(strategy, case["components"]), axis)


def gathers(strategy):
    for name, components in nest_of(strategy.num_replicas_in_sync).items():
        for axis in range(max(1, np.ndim(components[0]))):
            case = {"of": name, "components": components, "axis": axis}
            yield outcome(
                case,
                lambda c=case: strategy.gather(distributed(strategy, c["components"]), c["axis"]),
            )


def in_replicas(strategy, fn, *components):
    """What `fn(context, *own components)` gives on each replica."""

    @tf.function
    def step(*values):
        return strategy.run(lambda *own: fn(tf.distribute.get_replica_context(), *own), values)

    return local(strategy, step(*(distributed(strategy, c) for c in components)))


def all_reductions(strategy):
    for name in ("scalars", "vectors", "matrices"):
        components = nest_of(strategy.num_replicas_in_sync)[name]
        for op in ("SUM", "MEAN"):
            case = {"of": name, "components": components, "op": op}
            yield outcome(
                case,
                lambda c=case: in_replicas(
                    strategy, lambda ctx, own: ctx.all_reduce(c["op"], own), c["components"]
                ),
            )


def all_gathers(strategy):
    for name in ("vectors", "matrices", "uneven"):
        components = nest_of(strategy.num_replicas_in_sync)[name]
        for axis in range(np.ndim(components[0])):
            case = {"of": name, "components": components, "axis": axis}
            yield outcome(
                case,
                lambda c=case: in_replicas(
                    strategy, lambda ctx, own: ctx.all_gather(own, c["axis"]), c["components"]
                ),
            )


def gradients(strategy):
    """Of Σ w·combined(x) by x: what each replica gets depends on every replica's w."""
    each = range(strategy.num_replicas_in_sync)
    x = [[1.0 + r, 2.0 - r] for r in each]
    w = [[0.5 + r, 3.0 * r] for r in each]
    for op in ("SUM", "MEAN"):

        def gradient(ctx, x, w, op=op):
            with tf.GradientTape() as tape:
                tape.watch(x)
                total = tf.reduce_sum(w * ctx.all_reduce(op, x * x))
            return tape.gradient(total, x)

        case = {"of": "all_reduce", "op": op, "x": x, "w": w}
        yield outcome(case, lambda g=gradient: in_replicas(strategy, g, x, w))


# Input ------------------------------------------------------------------------------------------

RANGES = (
    (8, 8), (8, 3), (9, 9), (9, 2), (14, 8), (13, 4),
    (10, 5), (3, 3), (1, 1), (5, 2), (7, 16), (12, 4),
)  # fmt: skip


def splits(strategy):
    for rows, batch in RANGES:
        data = tf.data.Dataset.range(rows).map(lambda i: tf.cast(i, tf.float32)).batch(batch)
        batches = list(strategy.experimental_distribute_dataset(data))
        yield plain(
            {
                "rows": rows,
                "batch": batch,
                "pieces": [local(strategy, b) for b in batches],
                "means": [
                    [
                        None if np.isnan(m) else m
                        for m in local(strategy, strategy.run(tf.reduce_mean, (b,)))
                    ]
                    for b in batches
                ],
                "reduced": [np.asarray(strategy.reduce("MEAN", b, axis=0)) for b in batches],
            }
        )


def splits_from_function(strategy):
    for rows, batch in ((9, 2), (8, 2), (3, 1), (7, 3)):

        def dataset(context, rows=rows, batch=batch):
            return tf.data.Dataset.range(rows).batch(batch)

        batches = list(strategy.distribute_datasets_from_function(dataset))
        yield plain({"rows": rows, "batch": batch, "pieces": [local(strategy, b) for b in batches]})


# Losses, metrics, optimizers --------------------------------------------------------------------


def average_losses(strategy):
    each = range(strategy.num_replicas_in_sync)
    losses = [[1.0 + r, 2.0, 3.0, 4.0 - r] for r in each]
    weights = [[1.0, 0.0, 1.0, 0.5 * r] for r in each]
    uneven = [[2.0] * (3 - min(r, 2)) for r in each]

    def average(ctx, losses, weights, c):
        return tf.nn.compute_average_loss(
            losses, weights if c["weighted"] else None, c["global_batch_size"]
        )

    for c in (
        {"losses": losses, "weighted": False, "global_batch_size": None},
        {"losses": losses, "weighted": True, "global_batch_size": None},
        {"losses": losses, "weighted": False, "global_batch_size": 10},
        {"losses": losses, "weighted": True, "global_batch_size": 10},
        {"losses": uneven, "weighted": False, "global_batch_size": 5},
    ):
        case = {**c, "weights": weights if c["weighted"] else c["losses"]}
        yield outcome(
            case,
            lambda c=case: in_replicas(
                strategy, lambda ctx, loss, w: average(ctx, loss, w, c), c["losses"], c["weights"]
            ),
        )
    case = {"losses": losses, "regularization": True}
    yield outcome(
        case,
        lambda: in_replicas(
            strategy, lambda _, loss: tf.nn.scale_regularization_loss(loss), losses
        ),
    )


def keras_losses(strategy):
    each = range(strategy.num_replicas_in_sync)
    y = [[[1.0 + r, 0.0], [0.5, 0.25]] for r in each]
    prediction = [[[0.25, 0.5 - r], [0.125, 1.0]] for r in each]
    for name in ("MeanSquaredError", "MeanAbsoluteError", "Huber", "LogCosh"):
        loss = getattr(keras.losses, name)()
        case = {"loss": name, "y": y, "prediction": prediction}
        yield outcome(
            case, lambda f=loss: in_replicas(strategy, lambda _, a, b: f(a, b), y, prediction)
        )


METRICS = {
    "Mean": {},
    "Sum": {},
    "MeanSquaredError": {},
    "Precision": {},
    "Recall": {},
    "AUC": {"num_thresholds": 3},
    "BinaryAccuracy": {},
    "R2Score": {},
}


def metrics(strategy):
    generator = np.random.default_rng(3)
    for rows, batch in ((16, 4), (13, 4)):
        y = generator.integers(0, 2, rows).astype("float32")
        p = generator.uniform(size=rows).astype("float32")
        data = tf.data.Dataset.from_tensor_slices((y[:, None], p[:, None])).batch(batch)
        for name, options in METRICS.items():
            case = {"metric": name, "options": options, "batch": batch, "y": y, "p": p}
            yield outcome(case, lambda n=name, o=options, d=data: metric(strategy, n, o, d))


def metric(strategy, name, options, data):
    with strategy.scope():
        made = getattr(keras.metrics, name)(**options)

    def update(y, p):
        made.update_state(p) if name in ("Mean", "Sum") else made.update_state(y, p)

    results = []
    for batch in strategy.experimental_distribute_dataset(data):
        strategy.run(update, args=batch)
        results.append(np.asarray(made.result()))
    return results


OPTIMIZERS = (
    ("SGD", {"learning_rate": 0.5}),
    ("SGD", {"learning_rate": 0.5, "momentum": 0.9}),
    ("SGD", {"learning_rate": 0.5, "momentum": 0.9, "nesterov": True}),
    ("SGD", {"learning_rate": 0.5, "use_ema": True, "ema_momentum": 0.9}),
    ("SGD", {"learning_rate": 0.5, "gradient_accumulation_steps": 2}),
    ("SGD", {"learning_rate": 0.5, "global_clipnorm": 1.0}),
    ("Adam", {"learning_rate": 0.01}),
    ("Adam", {"learning_rate": 0.01, "beta_1": 0.2, "beta_2": 0.2}),
    ("Adam", {"learning_rate": 0.01, "amsgrad": True}),
    ("AdamW", {"learning_rate": 0.01, "weight_decay": 0.1}),
    ("RMSprop", {"learning_rate": 0.01, "momentum": 0.5}),
    ("Adagrad", {"learning_rate": 0.1}),
    ("Adamax", {"learning_rate": 0.1}),
    ("Lion", {"learning_rate": 0.1}),
    ("Ftrl", {"learning_rate": 0.1}),
)


def optimizers(strategy):
    each = range(strategy.num_replicas_in_sync)
    start = [[1.0, 2.0, 3.0], [-1.0]]
    # Step s, replica r; made inside the replica function: tf.distribute does not sum a gradient
    # that all replicas captured as one object.
    grads = [[[[0.5 + r, -1.0 * s, 0.25 * r], [2.0 - r]] for r in each] for s in range(4)]
    for name, options in OPTIMIZERS:
        case = {"optimizer": name, "options": options, "start": start, "grads": grads}
        yield outcome(case, lambda n=name, o=options: optimized(strategy, n, o, start, grads))


def optimized(strategy, name, options, start, grads):
    with strategy.scope():
        weights = [keras.Variable(np.asarray(value, "float32")) for value in start]
        optimizer = getattr(keras.optimizers, name)(**options)
        optimizer.build(weights)

    @tf.function
    def step(*values):
        strategy.run(lambda *own: optimizer.apply(list(own), weights), values)

    results = []
    for per_replica in grads:
        step(*(distributed(strategy, column) for column in zip(*per_replica, strict=True)))
        results.append([np.asarray(v.value) for v in weights])
    return results


def variables(strategy):
    each = range(strategy.num_replicas_in_sync)
    given = [r + 1.0 for r in each]
    for synchronization in ("on_write", "on_read"):
        for aggregation in ("sum", "mean", "only_first_replica"):
            for method in ("assign", "assign_add"):
                # Started at 0: an on-read SUM variable of TensorFlow counts its start per replica.
                case = {
                    "synchronization": synchronization,
                    "aggregation": aggregation,
                    "method": method,
                    "given": given,
                    "start": 0.0,
                }
                yield outcome(case, lambda c=case: written(strategy, c))


def written(strategy, case):
    with strategy.scope():
        variable = tf.Variable(
            case["start"],
            synchronization=getattr(tf.VariableSynchronization, case["synchronization"].upper()),
            aggregation=getattr(tf.VariableAggregation, case["aggregation"].upper()),
        )

    def write(value):
        getattr(variable, case["method"])(value)

    results = []
    for _ in range(2):
        strategy.run(write, args=(distributed(strategy, case["given"]),))
        results.append(np.asarray(variable.read_value()))
    return results


def returned(strategy):
    """What assigning gives in a replica, of a variable that is combined when it is written."""
    given = [r + 1.0 for r in range(strategy.num_replicas_in_sync)]
    rows = ("add", "sub", "mul", "div", "update", "max", "min")
    methods = ("assign", "assign_add", "assign_sub", *(f"scatter_{how}" for how in rows))
    for aggregation in ("sum", "mean", "only_first_replica"):
        for method in methods:
            case = {"aggregation": aggregation, "method": method, "given": given}
            yield outcome(case, lambda c=case: given_back(strategy, c))


def given_back(strategy, case):
    with strategy.scope():
        variable = tf.Variable(
            [2.0, 2.0, 2.0],
            trainable=False,
            aggregation=getattr(tf.VariableAggregation, case["aggregation"].upper()),
        )

    def write(value):
        rows = tf.IndexedSlices(tf.fill([2], value), tf.constant([0, 1]))
        whole = tf.fill([3], value)
        write = getattr(variable, case["method"])
        first = write(rows if case["method"].startswith("scatter") else whole)
        # Twice: the second is made of what the replicas agreed on.
        first = tf.convert_to_tensor(first)
        return first, tf.convert_to_tensor(variable.assign_add(whole))

    found = tf.function(lambda: strategy.run(write, (distributed(strategy, case["given"]),)))()
    return [local(strategy, one) for one in found]


# A custom training loop -------------------------------------------------------------------------


def training(strategy):
    generator = np.random.default_rng(0)
    x = generator.normal(size=(24, 4)).astype("float32")
    y = generator.integers(0, 3, 24)
    shapes = [(4, 8), (8,), (8, 3), (3,)]
    start = [generator.normal(0, 0.5, shape).astype("float32") for shape in shapes]
    for name, options in (
        ("SGD", {"learning_rate": 0.1, "momentum": 0.9}),
        ("Adam", {"learning_rate": 0.01}),
    ):
        for batch, steps in ((12, 10), (9, 6)):
            case = {
                "optimizer": name,
                "options": options,
                "batch": batch,
                "steps": steps,
                "x": x,
                "y": y,
                "start": start,
            }
            yield outcome(case, lambda c=case: trained(strategy, c))


def trained(strategy, case):
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((4,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(3)]
        )
        model.set_weights(case["start"])
        optimizer = getattr(keras.optimizers, case["optimizer"])(**case["options"])
        optimizer.build(model.trainable_variables)
    per_example = keras.losses.SparseCategoricalCrossentropy(True, reduction="none")
    data = tf.data.Dataset.from_tensor_slices((case["x"], case["y"])).batch(case["batch"])

    @tf.function
    def step(batch, rows):
        def replica(batch):
            x, y = batch
            with tf.GradientTape() as tape:
                losses = per_example(y, model(x, training=True))
                loss = tf.nn.compute_average_loss(losses, global_batch_size=rows)
            grads = tape.gradient(loss, model.trainable_variables)
            optimizer.apply(grads, model.trainable_variables)
            return loss

        return strategy.reduce("SUM", strategy.run(replica, (batch,)), None)

    losses, sizes = [], [len(x) for x, _ in data]
    while len(losses) < case["steps"]:
        for batch, rows in zip(strategy.experimental_distribute_dataset(data), sizes, strict=True):
            if len(losses) < case["steps"]:
                losses.append(np.asarray(step(batch, tf.constant(rows))))
    return {"losses": losses, "weights": [np.asarray(w) for w in model.get_weights()]}


# Where Replicax differs on purpose: what docs/migration.md says of TensorFlow ---------------------


def fit_uneven(strategy):
    """One epoch of 33 rows in batches of 16: the last batch is one row, on the first replica."""
    generator = np.random.default_rng(0)
    x = generator.normal(size=(33, 4)).astype("float32")
    y = x.sum(axis=1, keepdims=True)
    start = [generator.normal(size=(4, 1)).astype("float32"), np.zeros(1, "float32")]
    found = {"x": x, "y": y, "start": start}
    for name, scope in (("one_device", contextlib.nullcontext), ("mirrored_2", strategy.scope)):
        with scope():
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
            model.set_weights(start)
            model.compile(keras.optimizers.SGD(0.1), "mse")
        model.fit(x, y, batch_size=16, shuffle=False, verbose=0)
        found[name] = model.get_weights()
    return found


def batch_norm(strategy):
    """The moving mean on each replica after rows 0, 2 on the first and 10, 14 on the second."""
    with strategy.scope():
        layer = keras.layers.BatchNormalization(momentum=0.5)
        layer.build((None, 1))
    rows = distributed(strategy, [[[0.0], [2.0]], [[10.0], [14.0]]])
    tf.function(lambda: strategy.run(lambda x: layer(x, training=True), (rows,)))()
    return {"moving_mean": local(strategy, layer.moving_mean.value)}


def dropout(strategy):
    """Whether both replicas drop the same elements."""
    with strategy.scope():
        layer = keras.layers.Dropout(0.5, seed=1)
    dropped = tf.function(lambda: strategy.run(lambda: layer(tf.ones(64), training=True)))()
    one, two = local(strategy, dropped)
    return {"same": one == two}


def write_without_aggregation(strategy):
    with strategy.scope():
        variable = tf.Variable(0.0)
    strategy.run(variable.assign, (distributed(strategy, [1.0, 2.0]),))
    return {"components": local(strategy, variable)}


def captured_tensor(strategy):
    one = tf.constant(1.0)
    summed = strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("SUM", one))
    return {"sum": local(strategy, summed)}


def started_at_one(strategy):
    with strategy.scope():
        variable = tf.Variable(
            1.0,
            synchronization=tf.VariableSynchronization.ON_READ,
            aggregation=tf.VariableAggregation.SUM,
        )
    return {"reads": variable.read_value()}


def clipping(strategy):
    """Gradients (3, 0) and (0, 4), clipped to a global norm of 1."""
    with strategy.scope():
        weight = keras.Variable([0.0, 0.0])
        optimizer = keras.optimizers.SGD(1.0, global_clipnorm=1.0)
        optimizer.build([weight])
    own = distributed(strategy, [[3.0, 0.0], [0.0, 4.0]])
    tf.function(lambda: strategy.run(lambda g: optimizer.apply([g], [weight]), (own,)))()
    return {"weight": weight.value.values[0]}


def mean_of_integers(strategy):
    def fn():
        ctx = tf.distribute.get_replica_context()
        return ctx.all_reduce("MEAN", ctx.replica_id_in_sync_group)

    return {"dtype": strategy.run(fn).values[0].dtype.name}


def failures(strategy):
    """What raises an error in TensorFlow and works in Replicax."""

    def unbuilt():
        with strategy.scope():
            model, optimizer = keras.Sequential([keras.layers.Dense(1)]), keras.optimizers.Adam()

        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(model(x) ** 2)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply(gradients, model.trainable_variables)

        tf.function(lambda: strategy.run(step, (tf.ones((2, 3)),)))()

    def first_batch_uneven():
        with strategy.scope():
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
        model.evaluate(np.ones((3, 4), "float32"), np.ones((3, 1), "float32"), verbose=0)

    def all_reduce_of_a_number():
        strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("SUM", 1.0))

    def unbatched():
        next(iter(strategy.experimental_distribute_dataset(tf.data.Dataset.range(4))))

    return {
        fn.__name__: outcome({}, fn).get("error")
        for fn in (unbuilt, first_batch_uneven, all_reduce_of_a_number, unbatched)
    }


DIFFERENCES = {
    difference.__name__: difference
    for difference in (
        fit_uneven,
        batch_norm,
        dropout,
        write_without_aggregation,
        captured_tensor,
        started_at_one,
        clipping,
        mean_of_integers,
        failures,
    )
}


if __name__ == "__main__":
    main()
