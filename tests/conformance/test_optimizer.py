"""Optimizers inside `run` sum the gradients of all replicas, then do what Keras does."""

from __future__ import annotations

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx

from helpers import (
    assert_trees_close,
    batch_of,
    few_strategies,
    local,
    per_replica,
    two_replicas,
)


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
def test_gradients_are_summed(strategy):
    # Pair 127: lr 0.5, momentum 0.06; 2·[1, 6, 7, 2]·0.5 off [1, 2, 3, 4].
    variable, optimizer = made(
        strategy, [1, 2, 3, 4], keras.optimizers.SGD, learning_rate=0.5, momentum=0.06
    )
    result = steps(strategy, variable, optimizer, lambda: jnp.array([1.0, 6.0, 7.0, 2.0]))
    assert_trees_close(result, np.array([0.0, -4.0, -4.0, 2.0]))


@two_replicas
def test_captured_gradients_are_summed_too(strategy):
    # Pair 127's second half is [0.5, −1, −0.5, 3] in tf.distribute; section 0 says R·t.
    variable, optimizer = made(strategy, [1, 2, 3, 4], keras.optimizers.SGD, learning_rate=0.5)
    captured = jnp.array([1.0, 6.0, 7.0, 2.0])
    result = steps(strategy, variable, optimizer, lambda: captured)
    assert_trees_close(result, np.array([0.0, -4.0, -4.0, 2.0]))


def test_different_gradients_are_summed(strategy):
    variable, optimizer = made(strategy, [0.0], keras.optimizers.SGD, learning_rate=1.0)
    result = steps(strategy, variable, optimizer, lambda: jnp.ones(1) * (1.0 + replica_id()))
    replicas = strategy.num_replicas_in_sync
    assert_trees_close(result, np.array([-replicas * (replicas + 1) / 2]))


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
def test_adam_sees_the_summed_gradient(strategy):
    # Pair 130: gradients 0.5 and 1.0, Adam(0.01, β 0.2, 0.2) on 2.0.
    variable, optimizer = made(
        strategy, 2.0, keras.optimizers.Adam, learning_rate=0.01, beta_1=0.2, beta_2=0.2
    )
    value = per_replica(strategy, np.float32(0.5), np.float32(1.0))
    for expected, m, v in ((1.99, 1.2, 1.8), (1.98, 1.44, 2.16)):
        strategy.run(lambda g: optimizer.apply([g], [variable]), args=(value,))
        assert float(variable.value) == pytest.approx(expected, abs=1e-5)
        assert float(optimizer._momentums[0].value) == pytest.approx(m, rel=1e-5)
        assert float(optimizer._velocities[0].value) == pytest.approx(v, rel=1e-5)


@few_strategies
def test_iterations_count_global_steps(strategy):
    variable, optimizer = made(strategy, [1.0], keras.optimizers.SGD)
    steps(strategy, variable, optimizer, lambda: jnp.ones(1), count=3)
    assert int(optimizer.iterations.value) == 3


def test_a_missing_gradient_is_skipped(strategy):
    with strategy.scope():
        first, second = keras.Variable(1.0), keras.Variable(2.0)
        optimizer = keras.optimizers.SGD(1.0)
    optimizer.build([first, second])

    def replica_fn():
        optimizer.apply([None, jnp.float32(1.0)], [first, second])

    with pytest.warns(UserWarning, match="Gradients do not exist"):
        strategy.run(replica_fn)
    assert float(first.value) == 1.0
    assert float(second.value) == 2.0 - strategy.num_replicas_in_sync


@few_strategies
def test_the_global_norm_is_clipped_after_the_sum(strategy):
    # Gradients [3, 4]·2(r+1)/(R(R+1)) sum to [3, 4], of norm 5; clipped to 1: [0.6, 0.8].
    variable, optimizer = made(
        strategy, [0.0, 0.0], keras.optimizers.SGD, learning_rate=1.0, global_clipnorm=1.0
    )
    replicas = strategy.num_replicas_in_sync
    share = 2.0 / (replicas * (replicas + 1))

    def gradient():
        return jnp.array([3.0, 4.0]) * share * (1 + replica_id())

    assert_trees_close(steps(strategy, variable, optimizer, gradient), np.array([-0.6, -0.8]))


@few_strategies
@pytest.mark.parametrize(("clip", "expected"), [("clipvalue", -0.5), ("clipnorm", -0.5)])
def test_values_and_norms_are_clipped_after_the_sum(strategy, clip, expected):
    # Each replica's 0.4 would pass; with 2 replicas and more their sum does not.
    variable, optimizer = made(
        strategy, [0.0], keras.optimizers.SGD, learning_rate=1.0, **{clip: 0.5}
    )
    result = steps(strategy, variable, optimizer, lambda: jnp.full((1,), 0.4))
    expected = -0.4 if strategy.num_replicas_in_sync == 1 else expected
    assert_trees_close(result, np.array([expected]))


@few_strategies
def test_gradients_are_accumulated_over_steps(strategy):
    # Two steps of gradients 1 and 3 per replica; their mean 2 is applied once.
    variable, optimizer = made(
        strategy,
        [0.0],
        keras.optimizers.SGD,
        learning_rate=1.0,
        gradient_accumulation_steps=2,
    )
    replicas = strategy.num_replicas_in_sync
    assert_trees_close(steps(strategy, variable, optimizer, lambda: jnp.ones(1)), np.zeros(1))
    result = steps(strategy, variable, optimizer, lambda: jnp.full((1,), 3.0))
    assert_trees_close(result, np.array([-2.0 * replicas]))


@few_strategies
def test_weights_decay_once_per_step(strategy):
    # w ← w − w·wd·lr, then − lr·ΣG: 10 − 10·0.1·1 − R.
    variable, optimizer = made(
        strategy, [10.0], keras.optimizers.SGD, learning_rate=1.0, weight_decay=0.1
    )
    result = steps(strategy, variable, optimizer, lambda: jnp.ones(1))
    assert_trees_close(result, np.array([9.0 - strategy.num_replicas_in_sync]))


@few_strategies
def test_a_schedule_counts_global_steps(strategy):
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([1], [1.0, 0.1])
    variable, optimizer = made(strategy, [0.0], keras.optimizers.SGD, learning_rate=schedule)
    replicas = strategy.num_replicas_in_sync
    result = steps(strategy, variable, optimizer, lambda: jnp.ones(1), count=3)
    # Steps 0 and 1 at 1.0, step 2 at 0.1.
    assert_trees_close(result, np.array([-2.1 * replicas]))


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
@pytest.mark.parametrize("gradient", [1.0, np.inf], ids=["finite", "overflow"])
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


def test_applying_outside_run_sums_nothing(strategy):
    variable, optimizer = made(strategy, [0.0], keras.optimizers.SGD, learning_rate=1.0)
    with strategy.scope():
        optimizer.apply([jnp.ones(1)], [variable])
    assert_trees_close(variable.value, np.array([-1.0]))


@few_strategies
def test_slots_live_with_their_variables(strategy):
    variable, optimizer = made(strategy, [0.0], keras.optimizers.Adam)
    steps(strategy, variable, optimizer, lambda: jnp.ones(1))
    assert {frozenset(slot.value.devices()) for slot in optimizer.variables} == {
        frozenset(variable.value.devices())
    }


# The arithmetic of losses.


def test_a_keras_loss_is_this_replicas_share_of_the_mean(strategy):
    # Semantics 3.7: MSE of ones against zeros is 0.5 inside `run` on 2 replicas.
    def replica_fn():
        return keras.losses.MeanSquaredError()(jnp.zeros((2, 1)), jnp.ones((2, 1)))

    result = local(strategy, strategy.run(replica_fn))
    assert_trees_close(result, [np.float32(1 / strategy.num_replicas_in_sync)] * len(result))


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


def test_the_average_loss_is_a_share_of_the_global_mean(strategy):
    # Pair 125: [1, 2, 3, 4] on each of 2 replicas → 1.25 each, 2.5 in all.
    losses = np.array([1.0, 2.0, 3.0, 4.0], "float32")
    result = strategy.run(lambda: rx.nn.compute_average_loss(losses))
    replicas = strategy.num_replicas_in_sync
    assert_trees_close(local(strategy, result), [np.float32(2.5 / replicas)] * replicas)
    assert float(strategy.reduce("SUM", result, axis=None)) == pytest.approx(2.5)


def test_the_average_loss_of_a_known_batch_size(strategy):
    # Pair 125: global_batch_size=4 → 2.5; weights [1, 0, 1, 0] → (1 + 3) / (4 R).
    losses, weights = np.array([1.0, 2.0, 3.0, 4.0], "float32"), np.array([1, 0, 1, 0])

    def replica_fn():
        average = rx.nn.compute_average_loss
        return average(losses, global_batch_size=4), average(losses, sample_weight=weights)

    whole, weighted = strategy.run(replica_fn)
    assert float(local(strategy, whole)[0]) == 2.5
    expected = 1.0 / strategy.num_replicas_in_sync
    assert float(local(strategy, weighted)[0]) == pytest.approx(expected)


def test_regularization_counts_once(strategy):
    result = strategy.run(lambda: rx.nn.scale_regularization_loss([0.25, 0.5]))
    assert float(strategy.reduce("SUM", result, axis=None)) == pytest.approx(0.75)


@pytest.mark.parametrize("name", ["compute_average_loss", "scale_regularization_loss"])
def test_losses_are_not_averaged_in_cross_replica_context(strategy, name):
    # Pair 125.
    with strategy.scope(), pytest.raises(RuntimeError, match="outside `strategy.run`"):
        getattr(rx.nn, name)(np.ones(2))
