"""Replicax against numbers recorded once from real tf.distribute (`record_tf.py`, `recorded.json`).

TensorFlow is not needed here. Where Replicax differs on purpose, the case is left out by a
condition with the reason beside it, and what Replicax does instead is tested at the end.
"""

import functools
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
import replicax.tf as tf

RECORDED = json.loads(Path(__file__).with_name("recorded.json").read_text())
STRATEGIES = RECORDED["strategies"]

MAKERS = {
    "one_device": lambda: rx.OneDeviceStrategy("CPU:1"),
    "mirrored_3": lambda: rx.MirroredStrategy(["CPU:0", "CPU:1", "CPU:2"]),
    "mirrored_4": lambda: rx.MirroredStrategy(["CPU:0", "CPU:1", "CPU:2", "CPU:3"]),
    "central_storage_2": lambda: rx.CentralStorageStrategy(["CPU:0", "CPU:1"], "CPU:0"),
}


# Gives the numbers of a recorded strategy, of which mirrored replicas are tried by three and four.
SAME = {"central_storage_2": "mirrored_2"}


def recorded(section):
    """Run a test for every strategy for which `section` was recorded, with the cases."""
    cases = {name: STRATEGIES[SAME.get(name, name)].get(section) for name in MAKERS}
    return pytest.mark.parametrize(
        ("strategy", "cases"),
        [pytest.param(name, of, id=name) for name, of in cases.items() if of],
        indirect=["strategy"],
    )


@pytest.fixture
def strategy(request):
    return MAKERS[request.param]()


def distributed(strategy, components, dtype="float32"):
    return strategy.experimental_distribute_values_from_function(
        lambda context: np.asarray(components[context.replica_id_in_sync_group], dtype)
    )


def local(strategy, value):
    found = strategy.experimental_local_results(value)
    return [np.asarray(v) for v in found]


def in_replicas(strategy, fn, *components):
    """What `fn(context, *own components)` gives on each replica."""
    values = [distributed(strategy, one) for one in components]
    result = strategy.run(lambda *own: fn(rx.get_replica_context(), *own), args=values)
    return local(strategy, result)


def check(case, compute, rtol=1e-5, atol=1e-6):
    """The case's result, or an error where TensorFlow raised one."""
    where = {key: value for key, value in case.items() if not isinstance(value, list | dict)}
    if "error" in case:
        with pytest.raises(rx.errors.UsageError):
            compute()
        return
    assert_equal(compute(), case["result"], rtol, atol, where)


def assert_equal(found, expected, rtol=1e-5, atol=1e-6, where=None):
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            assert_equal(found[key], value, rtol, atol, where)
    elif isinstance(found, list):
        assert len(found) == len(expected), where
        for one, other in zip(found, expected, strict=True):
            assert_equal(one, other, rtol, atol, where)
    else:
        expected = np.asarray(expected, "float64")
        assert np.shape(found) == expected.shape, where
        np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol, err_msg=str(where))


@recorded("reductions")
def test_reduce(strategy, cases):
    for case in cases:
        axis = tuple(case["axis"]) if isinstance(case["axis"], list) else case["axis"]

        def compute(case=case, axis=axis):
            if "plain" in case:
                value = jnp.asarray(case["plain"])
            else:
                value = distributed(strategy, case["components"])
            return strategy.reduce(case["op"], value, axis)

        check(case, compute)


@recorded("gathers")
def test_gather(strategy, cases):
    for case in cases:
        check(
            case, lambda c=case: strategy.gather(distributed(strategy, c["components"]), c["axis"])
        )


def check_in_replicas(strategy, cases, call):
    for case in cases:
        in_replica = functools.partial(call, case)
        check(case, lambda c=case, fn=in_replica: in_replicas(strategy, fn, c["components"]))


@recorded("all_reductions")
def test_all_reduce(strategy, cases):
    check_in_replicas(strategy, cases, lambda case, ctx, own: ctx.all_reduce(case["op"], own))


@recorded("all_gathers")
def test_all_gather(strategy, cases):
    check_in_replicas(strategy, cases, lambda case, ctx, own: ctx.all_gather(own, case["axis"]))


@recorded("gradients")
def test_gradient_of_all_reduce(strategy, cases):
    for case in cases:

        def gradient(ctx, x, w, op=case["op"]):
            return jax.grad(lambda x: jnp.sum(w * ctx.all_reduce(op, x * x)))(x)

        check(case, lambda c=case, g=gradient: in_replicas(strategy, g, c["x"], c["w"]))


def batches_of(rows, batch):
    values = np.arange(rows, dtype="float32")
    return [values[start : start + batch] for start in range(0, rows, batch)]


@recorded("splits")
def test_batches_are_split(strategy, cases):
    for case in cases:
        batches = list(
            strategy.experimental_distribute_dataset(batches_of(case["rows"], case["batch"]))
        )
        assert_equal([local(strategy, b) for b in batches], case["pieces"])


@recorded("splits")
def test_mean_of_each_replica(strategy, cases):
    for case in cases:
        data = strategy.experimental_distribute_dataset(batches_of(case["rows"], case["batch"]))
        for batch, means, reduced in zip(data, case["means"], case["reduced"], strict=True):
            # The mean of a replica without rows is NaN in both; JSON has null for it.
            means = [np.nan if mean is None else mean for mean in means]
            assert_equal(local(strategy, strategy.run(jnp.mean, args=(batch,))), means)
            assert_equal(strategy.reduce("MEAN", batch, axis=0), reduced)


@recorded("splits_from_function")
def test_batches_from_a_function_are_dealt(strategy, cases):
    for case in cases:
        data = strategy.distribute_datasets_from_function(
            lambda context, c=case: batches_of(c["rows"], c["batch"])
        )
        assert_equal([local(strategy, b) for b in data], case["pieces"])


@recorded("average_losses")
def test_compute_average_loss(strategy, cases):
    for case in cases:

        def loss(ctx, losses, weights, case=case):
            if "regularization" in case:
                return rx.nn.scale_regularization_loss(losses)
            return rx.nn.compute_average_loss(
                losses, weights if case["weighted"] else None, case["global_batch_size"]
            )

        weights = case.get("weights", case["losses"])
        check(case, lambda c=case, f=loss, w=weights: in_replicas(strategy, f, c["losses"], w))


@recorded("keras_losses")
def test_keras_losses_are_scaled(strategy, cases):
    for case in cases:
        loss = getattr(keras.losses, case["loss"])()
        check(
            case,
            lambda c=case, f=loss: in_replicas(
                strategy, lambda _, y, p: f(y, p), c["y"], c["prediction"]
            ),
        )


@recorded("metrics")
def test_metrics(strategy, cases):
    for case in cases:
        check(case, lambda c=case: metric_results(strategy, c), atol=1e-5)


def metric_results(strategy, case):
    y, p = (np.asarray(case[name], "float32")[:, None] for name in ("y", "p"))
    rows = range(0, len(y), case["batch"])
    batches = [
        (y[start : start + case["batch"]], p[start : start + case["batch"]]) for start in rows
    ]
    with strategy.scope():
        metric = getattr(keras.metrics, case["metric"])(**case["options"])

    def update(y, p):
        if case["metric"] in ("Mean", "Sum"):
            metric.update_state(p)
        else:
            metric.update_state(y, p)

    results = []
    for batch in strategy.experimental_distribute_dataset(batches):
        strategy.run(update, args=batch)
        results.append(np.asarray(metric.result()))
    return results


@recorded("optimizers")
def test_optimizers_sum_the_gradients(strategy, cases):
    for case in cases:
        if "error" in case:
            continue  # Keras on TensorFlow cannot do these with replicas; Replicax can
        if "global_clipnorm" in case["options"] and strategy.num_replicas_in_sync > 1:
            continue  # clipped after the sum: see test_gradients_are_clipped_after_the_sum
        check(case, lambda c=case: optimizer_steps(strategy, c))


def optimizer_steps(strategy, case):
    with strategy.scope():
        weights = [keras.Variable(np.asarray(value, "float32")) for value in case["start"]]
        optimizer = getattr(keras.optimizers, case["optimizer"])(**case["options"])
        optimizer.build(weights)

    def apply(*own):
        optimizer.apply(list(own), weights)

    results = []
    for per_replica in case["grads"]:
        columns = zip(*per_replica, strict=True)
        strategy.run(apply, args=[distributed(strategy, column) for column in columns])
        results.append([np.asarray(v.value) for v in weights])
    return results


@recorded("variables")
def test_writes_are_aggregated(strategy, cases):
    for case in cases:
        check(case, lambda c=case: written(strategy, c))


def written(strategy, case):
    with strategy.scope():
        variable = keras.Variable(
            case["start"], synchronization=case["synchronization"], aggregation=case["aggregation"]
        )

    def write(value):
        getattr(variable, case["method"])(value)

    results = []
    for _ in range(2):
        strategy.run(write, args=(distributed(strategy, case["given"]),))
        results.append(np.asarray(variable.value))
    return results


@recorded("returned")
def test_what_assigning_gives_is_agreed_on(strategy, cases):
    for case in cases:
        # What TensorFlow computes of these is refused: a sum of changes loses digits.
        refused = case["aggregation"] == "sum" and case["method"] in ("scatter_mul", "scatter_div")
        if refused and strategy.num_replicas_in_sync > 1:
            with pytest.raises(rx.errors.VariableNotReduced):
                given_back(strategy, case)
        else:
            check(case, lambda c=case: given_back(strategy, c))


def given_back(strategy, case):
    with strategy.scope():
        variable = rx.Variable([2.0] * 3, trainable=False, aggregation=case["aggregation"])

    def write(value):
        rows = tf.IndexedSlices(jnp.full(2, value), jnp.arange(2))
        whole = jnp.full(3, value)
        write = getattr(variable, case["method"])
        first = write(rows if case["method"].startswith("scatter") else whole)
        return first, variable.assign_add(whole)

    found = strategy.run(write, args=(distributed(strategy, case["given"]),))
    return [local(strategy, one) for one in found]


@recorded("training")
def test_custom_training_loop(strategy, cases):
    for case in cases:
        check(case, lambda c=case: trained(strategy, c), rtol=2e-5, atol=2e-5)


def trained(strategy, case):
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((4,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(3)]
        )
        model.set_weights([np.asarray(value, "float32") for value in case["start"]])
        optimizer = getattr(keras.optimizers, case["optimizer"])(**case["options"])
    per_example = keras.losses.SparseCategoricalCrossentropy(True, reduction="none")
    x, y = np.asarray(case["x"], "float32"), np.asarray(case["y"])
    starts = range(0, len(x), case["batch"])
    batches = [(x[s : s + case["batch"]], y[s : s + case["batch"]]) for s in starts]

    @rx.function
    def step(batch, rows):
        def replica(batch):
            x, y = batch

            def loss_of():
                losses = per_example(y, model(x, training=True))
                return rx.nn.compute_average_loss(losses, global_batch_size=rows)

            loss, grads = rx.value_and_grad(loss_of, model)()
            optimizer.apply(grads, model.trainable_variables)
            return loss

        return strategy.reduce("SUM", strategy.run(replica, args=(batch,)), axis=None)

    losses = []
    while len(losses) < case["steps"]:
        data = strategy.experimental_distribute_dataset(batches)
        for batch, (rows, _) in zip(data, batches, strict=True):
            if len(losses) < case["steps"]:
                losses.append(np.asarray(step(batch, len(rows))))
    return {"losses": losses, "weights": [np.asarray(w) for w in model.get_weights()]}


# Where Replicax differs on purpose ---------------------------------------------------------------


def difference(name):
    return RECORDED["differences"][name]


def test_fit_with_uneven_batches_gives_one_devices_weights(mirrored):
    case = difference("fit_uneven")
    with mirrored.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.set_weights([np.asarray(value, "float32") for value in case["start"]])
        model.compile(keras.optimizers.SGD(0.1), "mse")
    x, y = (np.asarray(case[name], "float32") for name in ("x", "y"))
    model.fit(x, y, batch_size=16, shuffle=False, verbose=0)
    for found, one, two in zip(
        model.get_weights(), case["one_device"], case["mirrored_2"], strict=True
    ):
        np.testing.assert_allclose(found, one, rtol=1e-5, atol=1e-6)
        # TensorFlow's replicas end elsewhere: the last row counts half.
        assert np.max(np.abs(found - np.asarray(two))) > 0.01


def test_batch_norm_statistics_are_averaged(mirrored):
    assert difference("batch_norm") == {"moving_mean": [[0.5], [6.0]]}
    with mirrored.scope():
        layer = keras.layers.BatchNormalization(momentum=0.5)
        layer.build((None, 1))
    rows = distributed(mirrored, [[[0.0], [2.0]], [[10.0], [14.0]]])
    mirrored.run(lambda x: layer(x, training=True), args=(rows,))
    np.testing.assert_allclose(layer.moving_mean.value, [3.25])  # the mean of 0.5 and 6


def test_dropout_differs_per_replica(mirrored):
    assert difference("dropout") == {"same": True}
    with mirrored.scope():
        layer = keras.layers.Dropout(0.5, seed=1)
    one, two = mirrored.run(lambda: layer(jnp.ones(64), training=True)).values
    assert not np.array_equal(one, two)


def test_unequal_write_without_aggregation_is_an_error(mirrored):
    assert difference("write_without_aggregation") == {"components": [1.0, 2.0]}
    with mirrored.scope():
        variable = keras.Variable(0.0)
    with pytest.raises(rx.errors.VariableNotReduced, match="different values to variable"):
        mirrored.run(variable.assign, args=(distributed(mirrored, [1.0, 2.0]),))


def test_sum_of_a_captured_array_counts_every_replica(mirrored):
    assert difference("captured_tensor") == {"sum": [1.0, 1.0]}
    one = jnp.float32(1.0)
    assert float(mirrored.run(lambda: rx.get_replica_context().all_reduce("SUM", one))) == 2.0


def test_sum_variable_starts_at_its_start(mirrored):
    assert difference("started_at_one") == {"reads": 2.0}
    with mirrored.scope():
        variable = keras.Variable(1.0, synchronization="on_read", aggregation="sum")
        ours = rx.Variable(1.0, synchronization="on_read", aggregation="sum")
    assert float(variable.value) == 1.0  # of Keras' metrics, which are as on one device
    assert float(ours.value) == 2.0
    ours.assign(3.0)
    assert float(ours.value) == 3.0


def test_gradients_are_clipped_after_the_sum(mirrored):
    # TensorFlow clips each replica's share to (1, 0) and (0, 1), then sums: a norm of 1.4.
    assert difference("clipping") == {"weight": [-1.0, -1.0]}
    with mirrored.scope():
        weight = keras.Variable([0.0, 0.0])
        optimizer = keras.optimizers.SGD(1.0, global_clipnorm=1.0)

    def apply(own):
        optimizer.apply([own], [weight])

    mirrored.run(apply, args=(distributed(mirrored, [[3.0, 0.0], [0.0, 4.0]]),))
    # Σ = (3, 4), norm 5, clipped to (0.6, 0.8).
    np.testing.assert_allclose(weight.value, [-0.6, -0.8], rtol=1e-6)


def test_mean_of_integers_has_the_float_type_of_jax(mirrored):
    assert difference("mean_of_integers") == {"dtype": "float64"}

    def fn():
        ctx = rx.get_replica_context()
        return ctx.all_reduce("MEAN", ctx.replica_id_in_sync_group)

    assert mirrored.run(fn).dtype == jnp.float32


def test_what_fails_there_works_here(mirrored):
    failed = difference("failures")
    assert set(failed.values()) == {"InvalidArgumentError", "AttributeError", "IndexError"}

    def number():
        return rx.get_replica_context().all_reduce("SUM", 1.0)

    assert float(mirrored.run(number)) == 2.0
    with mirrored.scope():
        model, optimizer = keras.Sequential([keras.layers.Dense(1)]), keras.optimizers.Adam()

    def step(x):
        loss, gradients = rx.value_and_grad(lambda: jnp.mean(model(x) ** 2), model)()
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    mirrored.run(step, args=(jnp.ones((2, 3)),))
    assert model.built and int(optimizer.iterations) == 1
    with mirrored.scope():
        model.compile("sgd", "mse")
    three = np.ones((3, 3), "float32")
    assert np.isfinite(model.evaluate(three, three[:, :1], verbose=0))


def test_gradient_accumulation_of_keras_works_on_replicas(mirrored):
    case = next(
        case
        for case in STRATEGIES["mirrored_2"]["optimizers"]
        if "gradient_accumulation_steps" in case["options"]
    )
    assert case["error"] == "RuntimeError"
    first, second, *_ = optimizer_steps(mirrored, case)
    assert_equal(first, case["start"])  # the first of two steps only accumulates
    # Σ over replicas of steps 0 and 1, averaged over the two, times the rate 0.5.
    gradients = np.asarray([[own[0] for own in step] for step in case["grads"][:2]])
    expected = np.asarray(case["start"][0]) - 0.5 * gradients.sum(axis=1).mean(axis=0)
    np.testing.assert_allclose(second[0], expected, rtol=1e-6)
