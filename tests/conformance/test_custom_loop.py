"""Training loops written by hand: a step in `run` trains as one device does.

The references are NumPy (`helpers.trained_by_hand`) and plain Keras without a strategy.
"""

import threading

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
from replicax.testing import MATRIX

from helpers import (
    NumpyAdam,
    NumpySGD,
    assert_trees_close,
    batch_of,
    few_strategies,
    local,
    several_replicas,
    tanh_data,
    tanh_gradients,
    tanh_net,
    tanh_weights,
    three_strategies,
    trained_by_hand,
    two_replicas,
)

OPTIMIZERS = {
    "sgd": (lambda: keras.optimizers.SGD(0.1), lambda: NumpySGD(0.1)),
    "adam": (lambda: keras.optimizers.Adam(0.01), lambda: NumpyAdam(0.01)),
}


def made(strategy, optimizer="sgd"):
    with strategy.scope():
        return tanh_net(), OPTIMIZERS[optimizer][0]()


def keras_step(model, optimizer, loss=None):
    """A replica function as users write it, with a Keras loss."""
    loss = loss or keras.losses.MeanSquaredError()

    def replica_fn(batch):
        x, y = batch

        value, grads = rx.value_and_grad(lambda: loss(y, model(x, training=True)), model)()
        optimizer.apply(grads, model.trainable_variables)
        return value

    return replica_fn


def train(strategy, replica_fn, batches):
    losses = []
    for batch in strategy.experimental_distribute_dataset(batches):
        value = strategy.run(replica_fn, args=(batch,))
        losses.append(float(strategy.reduce("SUM", value, axis=None)))
    return losses


def weights_of(model):
    return [np.asarray(variable.value) for variable in model.variables]


@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
def test_twenty_steps_are_those_of_one_device(strategy, optimizer):
    batches = tanh_data(24, batches=20)
    model, keras_optimizer = made(strategy, optimizer)
    losses = train(strategy, keras_step(model, keras_optimizer), batches)
    expected_losses, expected = trained_by_hand(OPTIMIZERS[optimizer][1](), batches)
    assert_trees_close(losses, expected_losses, rtol=1e-5, atol=1e-5)
    assert_trees_close(weights_of(model), expected, rtol=1e-5, atol=1e-5)


@two_replicas
def test_a_keras_loss_of_uneven_rows_is_a_mean_of_means(strategy):
    # Semantics 3.7, as in tf.distribute inside `run`: 5 + 4 rows weigh one half each.
    ((x, y),) = tanh_data(9)
    model, optimizer = made(strategy)
    train(strategy, keras_step(model, optimizer), [(x, y)])
    weights = tanh_weights()
    grads = [tanh_gradients(weights, x[part], y[part])[1] for part in (slice(5), slice(5, 9))]
    expected = [w - 0.1 * (a + b) / 2 for w, a, b in zip(weights, *grads, strict=True)]
    assert_trees_close(weights_of(model), expected)


@two_replicas
def test_batch_normalization_survives_an_empty_replica(strategy):
    # Pair 133: 1 row on 2 replicas. The empty replica has no statistics, so the other's count.
    with strategy.scope():
        layer = keras.layers.BatchNormalization(momentum=0.5)
    x = np.full((1, 4, 4, 3), 2.0, "float32")
    result = strategy.run(lambda b: layer(b, training=True), args=(batch_of(strategy, x),))
    assert [part.shape for part in local(strategy, result)] == [(1, 4, 4, 3), (0, 4, 4, 3)]
    assert_trees_close(layer.moving_mean.value, np.full(3, 1.0))
    assert_trees_close(layer.moving_variance.value, np.full(3, 0.5))


@few_strategies
def test_an_unbuilt_model_and_optimizer_are_built_in_the_first_step(strategy):
    batches = tanh_data(24, batches=2)
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)])
        optimizer = keras.optimizers.Adam(0.01)
    step = keras_step(model, optimizer)
    train(strategy, step, batches[:1])
    assert [tuple(v.shape) for v in model.variables] == [(3, 4), (4,), (4, 1), (1,)]
    assert int(optimizer.iterations.value) == 1
    # One more step, from where it stands, by hand.
    before = weights_of(model)
    optimizer.learning_rate = 0.0
    losses = train(strategy, step, batches[1:])
    assert_trees_close(losses, trained_by_hand(NumpySGD(0.0), batches[1:], before)[0])


@few_strategies
def test_the_first_step_may_be_uneven_and_unbuilt(strategy):
    ((x, y),) = tanh_data(9)
    with strategy.scope():
        model = keras.Sequential([keras.layers.Dense(1, kernel_initializer="zeros")])
        optimizer = keras.optimizers.SGD(0.1)
    train(strategy, keras_step(model, optimizer), [(x, y)])
    assert np.isfinite(weights_of(model)[0]).all()
    assert np.abs(weights_of(model)[0]).max() > 0


@three_strategies
def test_bfloat16_trains_weights_of_float32(strategy):
    x = np.random.default_rng(0).normal(size=(24, 3)).astype("float32")
    y = x.sum(1, keepdims=True)
    with strategy.scope():
        model = keras.Sequential(
            [
                keras.layers.Dense(8, activation="tanh", dtype="mixed_bfloat16"),
                keras.layers.Dense(1),
            ]
        )
        optimizer = keras.optimizers.SGD(0.1)
    losses = train(strategy, keras_step(model, optimizer), [(x, y)] * 25)
    assert losses[-1] < 0.3 * losses[0]
    assert {v.value.dtype for v in model.variables} == {jnp.dtype("float32")}


@three_strategies
def test_mixed_float16_trains_as_one_device_does(strategy):
    x, y = tanh_data(24)[0]
    with strategy.scope():
        model = tanh_net()
        optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1), 1024.0)

    def scaled(y, predictions):
        return optimizer.scale_loss(keras.losses.MeanSquaredError()(y, predictions))

    train(strategy, keras_step(model, optimizer, scaled), [(x, y)])
    grads = tanh_gradients(tanh_weights(), x, y)[1]
    expected = [w - 0.1 * g for w, g in zip(tanh_weights(), grads, strict=True)]
    assert_trees_close(weights_of(model), expected)


@three_strategies
def test_the_global_norm_is_that_of_one_device(strategy):
    ((x, y),) = tanh_data(24)
    with strategy.scope():
        model, optimizer = tanh_net(), keras.optimizers.SGD(0.1, global_clipnorm=0.05)
    train(strategy, keras_step(model, optimizer), [(x, y)])
    weights = tanh_weights()
    grads = tanh_gradients(weights, x, y)[1]
    norm = np.sqrt(sum((g**2).sum() for g in grads))
    assert norm > 0.05
    expected = [w - 0.1 * g * 0.05 / norm for w, g in zip(weights, grads, strict=True)]
    assert_trees_close(weights_of(model), expected)


@three_strategies
def test_gradients_may_be_accumulated_by_hand(strategy):
    # Two half batches in one step, one update: the gradient of the whole batch.
    ((x, y),) = tanh_data(24)
    model, optimizer = made(strategy)

    def replica_fn(batch):
        totals = None
        for part in (slice(None, None, 2), slice(1, None, 2)):
            x, y = (leaf[part] for leaf in batch)

            def compute(x=x, y=y):
                return keras.losses.MeanSquaredError()(y, model(x)) / 2

            _, grads = rx.value_and_grad(compute, model)()
            totals = grads if totals is None else jax.tree.map(jnp.add, totals, grads)
        optimizer.apply(totals, model.trainable_variables)

    strategy.run(replica_fn, args=(batch_of(strategy, (x, y)),))
    assert_trees_close(weights_of(model), trained_by_hand(NumpySGD(0.1), [(x, y)])[1])


@few_strategies
def test_regularization_is_counted_once(strategy):
    # d/dw of 0.5·w² is w, whatever the number of replicas.
    with strategy.scope():
        layer = keras.layers.Dense(
            1,
            use_bias=False,
            kernel_initializer="ones",
            kernel_regularizer=keras.regularizers.L2(0.5),
        )
        optimizer = keras.optimizers.SGD(0.1)

    def replica_fn(x):
        def compute():
            return 0 * jnp.sum(layer(x)) + rx.nn.scale_regularization_loss(sum(layer.losses))

        value, grads = rx.value_and_grad(compute, layer)()
        optimizer.apply(grads, layer.trainable_variables)
        return value

    value = strategy.run(replica_fn, args=(np.ones((2, 3), "float32"),))
    assert float(strategy.reduce("SUM", value, axis=None)) == pytest.approx(1.5)
    assert_trees_close(layer.kernel.value, np.full((3, 1), 0.9))


@pytest.mark.parametrize("strategy", ["mirrored_2", "central_storage_4"], indirect=True)
@pytest.mark.parametrize("layer", [keras.layers.LSTM, keras.layers.GRU])
def test_recurrent_layers_give_the_outputs_of_one_device(strategy, layer):
    x = np.random.default_rng(0).normal(size=(9, 5, 3)).astype("float32")
    plain = layer(4)
    expected = np.asarray(plain(x))
    with strategy.scope():
        mine = layer(4)
        mine.build((None, 5, 3))
    mine.set_weights(plain.get_weights())
    outputs = strategy.run(lambda b: mine(b), args=(batch_of(strategy, x),))
    assert_trees_close(strategy.gather(outputs, axis=0), expected)


@pytest.mark.parametrize("strategy", ["mirrored_2", "central_storage_4"], indirect=True)
@pytest.mark.parametrize("layer", [keras.layers.LSTM, keras.layers.GRU])
def test_recurrent_layers_train_like_one_device(strategy, layer):
    sample = np.random.default_rng(0)
    x = sample.normal(size=(8, 5, 3)).astype("float32")
    y = sample.normal(size=(8, 2)).astype("float32")

    def trained(scope_of):
        keras.utils.set_random_seed(1)
        with scope_of.scope():
            model = keras.Sequential([keras.Input((5, 3)), layer(2)])
            optimizer = keras.optimizers.SGD(0.5)
        return train(scope_of, keras_step(model, optimizer), [(x, y)] * 3), weights_of(model)

    assert_trees_close(trained(strategy), trained(rx.get_strategy()))


@few_strategies
def test_a_pure_jax_program_trains(strategy):
    # A dict of parameters in and out; no Keras at all.
    ((x, y),) = tanh_data(24)
    names = ["kernel", "bias", "kernel_2", "bias_2"]
    params = dict(zip(names, tanh_weights(), strict=True))

    def loss(params, x, y):
        hidden = jnp.tanh(x @ params["kernel"] + params["bias"])
        return jnp.mean((hidden @ params["kernel_2"] + params["bias_2"] - y) ** 2)

    def replica_fn(params, batch):
        value, grads = jax.value_and_grad(loss)(params, *batch)
        value, grads = rx.get_replica_context().all_reduce("MEAN", (value, grads))
        return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)

    losses = []
    for _ in range(5):
        value, params = strategy.run(replica_fn, args=(params, batch_of(strategy, (x, y))))
        losses.append(float(value))
    expected_losses, expected = trained_by_hand(NumpySGD(0.1), [(x, y)] * 5)
    assert_trees_close(losses, expected_losses)
    assert_trees_close([np.asarray(params[name]) for name in names], expected)


def function_step(strategy, model, optimizer):
    replica_fn = keras_step(model, optimizer)

    @rx.function
    def step(batch):
        return strategy.reduce("SUM", strategy.run(replica_fn, args=(batch,)), axis=None)

    return step


@few_strategies
def test_a_function_makes_one_program_of_run_and_reduce(strategy):
    batches = tanh_data(24, batches=5)
    model, optimizer = made(strategy, "adam")
    step = function_step(strategy, model, optimizer)
    losses = [float(step(b)) for b in strategy.experimental_distribute_dataset(batches)]
    expected_losses, expected = trained_by_hand(NumpyAdam(0.01), batches)
    assert_trees_close(losses, expected_losses, rtol=1e-5, atol=1e-5)
    assert_trees_close(weights_of(model), expected, rtol=1e-5, atol=1e-5)
    assert step.num_traces == 1


@three_strategies
def test_several_steps_fit_in_one_function(strategy):
    batches = tanh_data(24, batches=3)
    model, optimizer = made(strategy)
    replica_fn = keras_step(model, optimizer)

    @rx.function
    def three_steps(batches):
        return [
            strategy.reduce("SUM", strategy.run(replica_fn, args=(batch,)), axis=None)
            for batch in batches
        ]

    losses = three_steps(list(strategy.experimental_distribute_dataset(batches)))
    expected_losses, expected = trained_by_hand(NumpySGD(0.1), batches)
    assert_trees_close([float(loss) for loss in losses], expected_losses)
    assert_trees_close(weights_of(model), expected)


@few_strategies
def test_metrics_update_inside_a_function(strategy):
    with strategy.scope():
        metric = keras.metrics.Mean()

    @rx.function
    def step(batch):
        strategy.run(lambda x: metric.update_state(x), args=(batch,))
        return metric.result()

    means = [float(step(batch_of(strategy, np.arange(n, dtype="float32")))) for n in (8, 3)]
    assert means == [pytest.approx(3.5), pytest.approx((28 + 3) / 11)]


@three_strategies
def test_printing_the_loss_inside_is_explained(strategy):
    model, _ = made(strategy)

    def replica_fn(batch):
        loss = keras.losses.MeanSquaredError()(batch[1], model(batch[0]))
        return f"{float(loss):.3f}"

    with pytest.raises(rx.errors.LeakedTracer, match="look at it outside"):
        strategy.run(replica_fn, args=(batch_of(strategy, tanh_data(24)[0]),))


@three_strategies
def test_a_failed_step_leaves_the_model_usable(strategy):
    ((x, y),) = tanh_data(24)
    model, optimizer = made(strategy)
    replica_fn = keras_step(model, optimizer)

    def failing(batch):
        replica_fn(batch)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        strategy.run(failing, args=(batch_of(strategy, (x, y)),))
    assert_trees_close(weights_of(model), tanh_weights())
    assert int(optimizer.iterations.value) == 0
    train(strategy, replica_fn, [(x, y)])
    assert_trees_close(weights_of(model), trained_by_hand(NumpySGD(0.1), [(x, y)])[1])


@three_strategies
def test_training_works_in_a_second_thread(strategy):
    batches = tanh_data(24, batches=3)
    model, optimizer = made(strategy)
    replica_fn = keras_step(model, optimizer)
    thread = threading.Thread(target=lambda: train(strategy, replica_fn, batches))
    thread.start()
    thread.join()
    assert_trees_close(weights_of(model), trained_by_hand(NumpySGD(0.1), batches)[1])


@several_replicas
def test_two_loops_take_turns_on_the_same_devices(strategy, mirrored):
    batches = tanh_data(24, batches=4)
    loops = [(each, *made(each)) for each in (strategy, mirrored)]
    steps = [keras_step(model, optimizer) for _, model, optimizer in loops]
    for batch in batches:
        for (each, _, _), step in zip(loops, steps, strict=True):
            train(each, step, [batch])
    expected = trained_by_hand(NumpySGD(0.1), batches)[1]
    for _, model, _ in loops:
        assert_trees_close(weights_of(model), expected)


@three_strategies
def test_a_model_trains_by_hand_and_by_fit_in_turn(strategy):
    ((x, y),) = tanh_data(24)
    with strategy.scope():
        model = tanh_net()
        model.compile(keras.optimizers.SGD(0.1), "mse")
    train(strategy, keras_step(model, model.optimizer), [(x, y)])
    model.fit(x, y, batch_size=24, epochs=1, verbose=0)
    train(strategy, keras_step(model, model.optimizer), [(x, y)])
    assert_trees_close(weights_of(model), trained_by_hand(NumpySGD(0.1), [(x, y)] * 3)[1])


@few_strategies
def test_two_optimizers_train_two_parts(strategy):
    # As in a GAN: disjoint variables, two updates in one step.
    with strategy.scope():
        first, second = keras.Variable(1.0), keras.Variable(2.0)
        optimizers = [keras.optimizers.SGD(0.1), keras.optimizers.SGD(1.0)]

    def replica_fn(x):
        def product():
            return jnp.mean(x) * first * second / rx.get_replica_context().num_replicas_in_sync

        for variable, optimizer in zip((first, second), optimizers, strict=True):
            _, grads = rx.value_and_grad(product, [variable])()
            optimizer.apply(grads, [variable])

    strategy.run(replica_fn, args=(batch_of(strategy, np.full(24, 3.0, "float32")),))
    # first: 1 − 0.1·3·2 = 0.4; second, with the new first: 2 − 1·3·0.4 = 0.8.
    assert_trees_close((first.value, second.value), (np.float32(0.4), np.float32(0.8)))


def test_a_function_follows_the_current_strategy():
    scaled = rx.function(lambda x: x * rx.get_strategy().num_replicas_in_sync)
    answers = []
    for name in ("mirrored_2", "mirrored_3"):
        with MATRIX[name]().scope():
            answers.append(int(scaled(jnp.int32(10))))
    assert [*answers, int(scaled(jnp.int32(10)))] == [20, 30, 10]
