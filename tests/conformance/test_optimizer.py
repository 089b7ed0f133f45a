"""Optimizers inside `run` sum the gradients of all replicas, then do what Keras does."""

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx

from helpers import assert_trees_close, batch_of, few_strategies, local, two_replicas


def replica_id():
    return rx.get_replica_context().replica_id_in_sync_group


def made(strategy, value, optimizer, **options):
    """A variable and an optimizer of the strategy."""
    with strategy.scope():
        return keras.Variable(np.asarray(value, "float32")), optimizer(**options)


def steps(strategy, variable, optimizer, gradient, count=1):
    for _ in range(count):
        strategy.run(lambda: optimizer.apply([gradient()], [variable]))
    return np.asarray(variable.value)


@two_replicas
def test_captured_gradients_are_summed_too(strategy):
    # Pair 127's second half is [0.5, −1, −0.5, 3] in tf.distribute; section 0 says R·t.
    variable, optimizer = made(strategy, [1, 2, 3, 4], keras.optimizers.SGD, learning_rate=0.5)
    captured = jnp.array([1.0, 6.0, 7.0, 2.0])
    result = steps(strategy, variable, optimizer, lambda: captured)
    assert_trees_close(result, np.array([0.0, -4.0, -4.0, 2.0]))


@few_strategies
def test_the_average_of_the_variables_is_kept(strategy):
    # Pair 128: SGD(1), EMA 0.9 with an overwrite at every 3rd step. With R replicas and
    # gradients of 1, each step is R: w = 3−R, 3−2R, 3−3R. The average starts at 3−R, then
    # 0.9(3−R) + 0.1(3−2R) = 3 − 1.1R, then 0.9(3 − 1.1R) + 0.1(3−3R) = 3 − 1.29R, which
    # overwrites w. (With R = 1 these are the 2.0, 1.9 and 1.71 of the pair.)
    options = {"use_ema": True, "ema_momentum": 0.9, "ema_overwrite_frequency": 3}
    variable, optimizer = made(
        strategy, [3.0, 4.0], keras.optimizers.SGD, learning_rate=1.0, **options
    )
    r = strategy.num_replicas_in_sync
    expected = [(3 - r, 3 - r), (3 - 2 * r, 3 - 1.1 * r), (3 - 1.29 * r, 3 - 1.29 * r)]
    for value, average in expected:
        steps(strategy, variable, optimizer, lambda: jnp.ones(2))
        kept = optimizer._model_variables_moving_average[0]
        assert_trees_close(variable.value, np.array([value, value + 1]), rtol=1e-4, atol=1e-5)
        assert_trees_close(kept.value, np.array([average, average + 1]), rtol=1e-4, atol=1e-5)


@two_replicas
@pytest.mark.parametrize("make", [keras.optimizers.Adam, keras.optimizers.SGD])
def test_a_schedule_works_with_uneven_batches(strategy, make):
    # The boundaries and rates of a schedule are constants of each replica's program.
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([1], [1.0, 0.1])
    variable, optimizer = made(strategy, [0.0], make, learning_rate=schedule)

    def replica_fn(x):
        optimizer.apply([jnp.sum(x)[None]], [variable])

    for _ in range(3):
        strategy.run(replica_fn, args=(batch_of(strategy, np.ones(9, "float32")),))
    # SGD: −9·(1 + 1 + 0.1). Adam moves by its rate, as the gradient is always the same.
    expected = -2.1 if make is keras.optimizers.Adam else -18.9
    assert_trees_close(variable.value, np.array([expected]), rtol=1e-4)


def test_a_learning_rate_can_be_set_between_steps(strategy):
    variable, optimizer = made(strategy, [0.0], keras.optimizers.SGD, learning_rate=1.0)
    replica_fn = optimizer_step(optimizer, variable)
    strategy.run(replica_fn)
    optimizer.learning_rate = 0.5
    strategy.run(replica_fn)
    assert_trees_close(variable.value, np.array([-1.5 * strategy.num_replicas_in_sync]))


def optimizer_step(optimizer, variable):
    return lambda: optimizer.apply([jnp.ones(1)], [variable])


@few_strategies
def test_slots_live_with_their_variables(strategy):
    variable, optimizer = made(strategy, [0.0], keras.optimizers.Adam)
    steps(strategy, variable, optimizer, lambda: jnp.ones(1))
    assert {frozenset(slot.value.devices()) for slot in optimizer.variables} == {
        frozenset(variable.value.devices())
    }


@few_strategies
@pytest.mark.parametrize("gradient", [1.0, np.inf, np.nan], ids=["finite", "overflow", "nan"])
def test_a_loss_scale_watches_the_summed_gradients(strategy, gradient):
    # An overflow on one replica only must skip the step on all of them.
    with strategy.scope():
        variable = keras.Variable(np.zeros(1, "float32"))
        optimizer = keras.optimizers.LossScaleOptimizer(
            keras.optimizers.SGD(1.0), initial_scale=8.0
        )
    replicas = strategy.num_replicas_in_sync

    def replica_fn():
        last = replica_id() == replicas - 1
        optimizer.apply([jnp.where(last, gradient, 1.0) * 8.0 * jnp.ones(1)], [variable])

    strategy.run(replica_fn)
    finite = np.isfinite(gradient)
    assert_trees_close(variable.value, np.array([-float(replicas) if finite else 0.0]))
    assert float(optimizer.dynamic_scale.value) == (8.0 if finite else 4.0)


def test_a_keras_loss_outside_run_is_the_mean(strategy):
    with strategy.scope():
        loss = keras.losses.MeanSquaredError()(jnp.zeros((2, 1)), jnp.ones((2, 1)))
    assert float(loss) == 1.0


def test_unreduced_and_summed_losses_are_not_scaled(strategy):
    def replica_fn():
        losses = [keras.losses.MeanSquaredError(reduction=r) for r in (None, "sum")]
        return [loss(jnp.zeros((2, 1)), jnp.ones((2, 1))) for loss in losses]

    unreduced, total = strategy.run(replica_fn)
    assert_trees_close(local(strategy, unreduced)[0], np.ones(2))
    assert float(local(strategy, total)[0]) == 2.0
