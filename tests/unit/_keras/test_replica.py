"""What Keras does differently inside `run`, seam by seam; expected values by hand."""

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
from replicax._keras import _compat


def variable(strategy, value=0.0):
    with strategy.scope():
        return keras.Variable(np.asarray(value, "float32"))


def replica_number():
    return rx.get_replica_context().replica_id_in_sync_group + 1.0


class WithAValue(keras.optimizers.SGD):
    """Its momentum is a variable that begins with a value, which Keras refuses in a trace."""

    def build(self, variables):
        super().build(variables)
        self.factor = keras.Variable(0.5)

    def update_step(self, gradient, variable, learning_rate):
        super().update_step(gradient * self.factor, variable, learning_rate)


# From 2 with the gradient 2 · v, after two steps of 0.1; recorded of TensorFlow 2.21.
@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: keras.optimizers.Nadam(0.1), 1.8182227611541748),
        (lambda: keras.optimizers.Adafactor(0.1), 1.6283645629882812),
        (  # of `stateless_apply` of Keras alone
            lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Nadam(0.1), 4.0),
            1.783903,
        ),
        (lambda: WithAValue(0.1), 2.0 * 0.9 * 0.9),
        # Changes by 0.1 · 0.5 · 4, and by 0.5 · 0.2 + 0.1 · 0.5 · 3.6.
        (lambda: WithAValue(0.1, momentum=0.5), 2.0 - 0.2 - 0.28),
        (lambda: keras.optimizers.LossScaleOptimizer(WithAValue(0.1), 4.0), 2.0 * 0.9 * 0.9),
    ],
    ids=["Nadam", "Adafactor", "loss scale", "own", "own with momentum", "own with loss scale"],
)
@pytest.mark.parametrize("built", [True, False], ids=["model built", "model not built"])
def test_an_optimizer_that_begins_with_values_is_built_in_a_step(mirrored, make, expected, built):
    with mirrored.scope():
        start = keras.initializers.Constant(2.0)
        layer = keras.layers.Dense(1, use_bias=False, kernel_initializer=start)
        optimizer = make()
        if built:
            layer.build((1, 1))

    def step():
        with rx.GradientTape() as tape:
            loss = optimizer.scale_loss(jnp.sum(layer(jnp.ones((1, 1))) ** 2) / 2)
        weights = layer.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))

    mirrored.run(step)
    mirrored.run(step)
    assert float(layer.kernel[0, 0]) == pytest.approx(expected, rel=1e-6)
    with mirrored.scope():
        other = make()
        other.build(layer.trainable_variables)
    # None is left of a trace that failed.
    assert [v.shape for v in optimizer.variables] == [v.shape for v in other.variables]


def test_an_optimizer_cannot_begin_with_a_value_if_the_weights_come_with_it(mirrored):
    optimizer, made = WithAValue(0.1), []

    def step():
        if not made:
            made.append(rx.Variable(jnp.ones(2) * 2.0))
        optimizer.apply([jnp.ones(2)], made)

    with pytest.raises(rx.errors.UsageError, match="optimizer.build"):
        mirrored.run(step)
    assert not optimizer.built


def test_a_build_that_fails_is_not_taken_for_one(mirrored):
    class Failing(keras.optimizers.SGD):
        def build(self, variables):
            super().build(variables)
            raise RuntimeError("out of order")

    weight, optimizer = variable(mirrored), Failing(0.1)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="out of order"):
            mirrored.run(lambda: optimizer.apply([jnp.float32(1.0)], [weight]))


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: keras.optimizers.SGD(1.0), -3.0),  # 1 + 2
        (lambda: keras.optimizers.SGD(1.0, global_clipnorm=1.0), -1.0),  # clipped after the sum
        (lambda: keras.optimizers.SGD(1.0, clipnorm=0.5), -0.5),
        (lambda: keras.optimizers.SGD(1.0, clipvalue=2.0), -2.0),
        (lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0), 1.0), -3.0),
    ],
    ids=["plain", "clipped by all", "clipped by norm", "clipped by value", "loss scale"],
)
def test_gradients_are_summed_once_before_all_else(mirrored, make, expected):
    v = variable(mirrored)
    with mirrored.scope():
        optimizer = make()
    mirrored.run(lambda: optimizer.apply([replica_number()], [v]))
    assert float(v.value) == expected


@pytest.mark.skipif(
    not hasattr(keras.optimizers, "MultiOptimizer"), reason="this Keras has no MultiOptimizer"
)
def test_an_optimizer_of_optimizers_sums_once(mirrored):
    v, w = variable(mirrored), variable(mirrored)
    with mirrored.scope():
        slow, fast = keras.optimizers.SGD(1.0), keras.optimizers.SGD(10.0)
        optimizer = keras.optimizers.MultiOptimizer(lambda one: slow if one is v else fast)
    mirrored.run(lambda: optimizer.apply([replica_number(), replica_number()], [v, w]))
    assert (float(v.value), float(w.value)) == (-3.0, -30.0)


def test_gradients_may_be_an_iterator(mirrored):
    weight = variable(mirrored)
    optimizer = keras.optimizers.SGD(1.0)
    mirrored.run(lambda: optimizer.apply(iter([jnp.float32(1.0)]), [weight]))
    assert float(weight.value) == -2.0


@pytest.mark.parametrize("form", [list, iter])
def test_pairs_are_no_gradients(mirrored, form):
    weight = variable(mirrored)
    optimizer = keras.optimizers.SGD(1.0)
    with pytest.raises(rx.errors.UsageError, match="apply_gradients"):
        mirrored.run(lambda: optimizer.apply(form([(jnp.float32(1.0), weight)])))


def test_a_missing_gradient_stays_missing(mirrored):
    v, w = variable(mirrored), variable(mirrored)
    with mirrored.scope():
        optimizer = keras.optimizers.SGD(1.0)
        optimizer.build([v, w])
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        mirrored.run(lambda: optimizer.apply([None, replica_number()], [v, w]))
    assert (float(v.value), float(w.value)) == (0.0, -3.0)


def test_outside_run_gradients_are_taken_as_they_are(mirrored):
    v = variable(mirrored)
    with mirrored.scope():
        optimizer = keras.optimizers.SGD(1.0)
        optimizer.apply([jnp.float32(1.0)], [v])
    optimizer.apply([jnp.float32(1.0)], [v])
    assert float(v.value) == -2.0


def test_scaling_and_unscaling_undo_each_other(mirrored):
    scale = _compat.losses.scale_loss_for_distribution
    unscale = _compat.losses.unscale_loss_for_distribution
    assert float(mirrored.run(lambda: scale(jnp.float32(6.0)))) == 3.0
    assert float(mirrored.run(lambda: unscale(jnp.float32(6.0)))) == 12.0
    assert float(scale(6.0)) == float(unscale(6.0)) == 6.0
    with mirrored.scope():
        assert float(scale(6.0)) == 6.0


def test_a_compiled_models_loss_tracker_is_not_scaled(mirrored):
    with mirrored.scope():
        metric = keras.metrics.MeanSquaredError()
    mirrored.run(lambda: metric.update_state(jnp.ones((2, 1)), jnp.zeros((2, 1))))
    assert float(metric.result()) == 1.0


def seeds(strategy, generator):
    drawn = strategy.run(lambda: generator.next())
    return [np.asarray(seed).tolist() for seed in strategy.experimental_local_results(drawn)]


def test_each_replica_has_its_own_stream(strategy):
    replicas = strategy.num_replicas_in_sync
    with strategy.scope():
        generator = keras.random.SeedGenerator(7)
    first, second = seeds(strategy, generator), seeds(strategy, generator)
    assert len({tuple(seed) for seed in first + second}) == 2 * replicas
    assert first[0] == [7, 0]  # replica 0 draws what one device draws
    assert second[0] == [7, 1]
    assert generator.state.value.tolist() == [7, 2]  # stored equally everywhere


def test_outside_run_the_stream_is_keras_own(mirrored):
    with mirrored.scope():
        generator = keras.random.SeedGenerator(7)
        assert generator.next().tolist() == [7, 0]
    assert generator.next(ordered=False).tolist() == [7, 1]


def test_moving_statistics_are_averaged(mirrored):
    with mirrored.scope():
        layer = keras.layers.BatchNormalization(momentum=0.5)
        layer.build((None, 1))
    assert layer.moving_mean.aggregation == layer.moving_variance.aggregation == "mean"
    batch = np.array([[1.0], [3.0], [10.0], [16.0]], "float32")
    (batch,) = mirrored.experimental_distribute_dataset([batch])
    out = mirrored.run(lambda x: layer(x, training=True), args=(batch,))
    # Replica means 2 and 13, variances 1 and 9; half of each is taken over.
    assert layer.moving_mean.value.tolist() == [3.75]
    assert layer.moving_variance.value.tolist() == [3.0]
    # Normalised by the replica's own statistics.
    for rows in mirrored.experimental_local_results(out):
        np.testing.assert_allclose(np.asarray(rows).ravel(), [-1.0, 1.0], atol=2e-3)


def test_a_replica_without_rows_adds_no_nan_to_the_gradient_of_batch_statistics(mirrored):
    with mirrored.scope():
        layer = keras.layers.BatchNormalization(momentum=0.5)
        layer.build((None, 1))
    (batch,) = mirrored.experimental_distribute_dataset([np.array([[3.0]], "float32")])

    def step(x):
        loss = rx.value_and_grad(lambda: keras.ops.sum(layer(x, training=True)), layer)
        return rx.get_replica_context().all_reduce("SUM", loss()[1])

    gamma, beta = (np.asarray(one) for one in mirrored.run(step, args=(batch,)))
    assert (gamma.tolist(), beta.tolist()) == ([0.0], [1.0])
    assert layer.moving_mean.value.tolist() == [1.5]


def test_batch_statistics_stay_where_no_replica_has_rows(mirrored):
    with mirrored.scope():
        layer = keras.layers.BatchNormalization(momentum=0.5)
        layer.build((None, 1))
    mirrored.run(lambda: layer(np.zeros((0, 1), "float32"), training=True))
    assert layer.moving_mean.value.tolist() == [0.0]
    assert layer.moving_variance.value.tolist() == [1.0]


def test_other_weights_keep_their_aggregation(mirrored):
    with mirrored.scope():
        layer = keras.layers.BatchNormalization()
        layer.build((None, 1))
    assert (layer.gamma.aggregation, layer.beta.aggregation) == ("none", "none")
