"""Replicas with different numbers of rows, or none: true shapes, exact numbers, gradients too."""

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
from replicax.testing import MATRIX

THREE = ["mirrored_3", "central_storage_3"]


def pieces_of(name, values):
    strategy = MATRIX[name]()
    (batch,) = strategy.experimental_distribute_dataset([np.asarray(values, "float32")])
    return strategy, batch


@pytest.mark.parametrize("name", THREE)
def test_gradient_of_all_gather_is_each_replicas_own_slice(name):
    strategy, batch = pieces_of(name, [0, 1, 2, 3, 4])

    def fn(x):
        return jax.grad(lambda x: (rx.get_replica_context().all_gather(x, 0) ** 2).sum())(x)

    # Every replica computes Σ x², so the gradient is 3 · 2x, cut to each replica's rows.
    values = strategy.run(fn, args=(batch,)).values
    assert [v.tolist() for v in values] == [[0, 6], [12, 18], [24]]


@pytest.mark.parametrize("name", THREE)
def test_gradient_of_all_reduce_over_uneven_rows(name):
    strategy, batch = pieces_of(name, [1, 2, 3, 4, 5])

    def fn(x):
        context = rx.get_replica_context()
        return jax.grad(lambda x: context.all_reduce("MEAN", x.sum()) ** 2)(x)

    # f = m², m = (Σ x) / 3 = 5; all three replicas hold f: d(3 f)/dx = 3 · 2m · 1/3 = 10.
    values = strategy.run(fn, args=(batch,)).values
    assert [v.tolist() for v in values] == [[10, 10], [10, 10], [10]]


@pytest.mark.parametrize("name", THREE)
def test_loss_of_a_replica_without_rows_is_zero(name):
    strategy, batch = pieces_of(name, [[1.0], [2.0]])
    with strategy.scope():
        weight = keras.Variable(1.0, name="weight")

    def fn(x):
        def loss():
            return keras.losses.MeanSquaredError()(jnp.zeros_like(x), weight * x)

        return rx.value_and_grad(loss, weight)()

    loss, (gradient,) = strategy.run(fn, args=(batch,))
    # Per-replica means 1, 4 and 0, each divided by 3 replicas; d(w²x²)/dw = 2x².
    np.testing.assert_allclose(np.array([float(v) for v in loss.values]), [1 / 3, 4 / 3, 0], 1e-6)
    np.testing.assert_allclose(float(strategy.reduce("SUM", gradient, None)), 10 / 3, 1e-6)


@pytest.mark.parametrize("rows", range(1, 10))
@pytest.mark.parametrize("name", ["mirrored_2", "mirrored_3", "central_storage_4"])
def test_training_on_any_rows_equals_numpy(name, rows):
    """Global-mean gradients through `compute_average_loss(global_batch_size=…)`."""
    strategy = MATRIX[name]()
    x = np.arange(1, rows + 1, dtype="float32")
    with strategy.scope():
        weight = keras.Variable(2.0, name="weight")
        optimizer, mean = keras.optimizers.SGD(0.01), keras.metrics.Mean()

    def step(x):
        def loss():
            return rx.nn.compute_average_loss((weight * x - 1) ** 2, global_batch_size=rows)

        value, gradients = rx.value_and_grad(loss, weight)()
        optimizer.apply(gradients, [weight])
        mean.update_state((weight * x - 1) ** 2)
        return value

    (batch,) = strategy.experimental_distribute_dataset([x])
    value = strategy.reduce("SUM", strategy.run(step, args=(batch,)), None)
    new = 2.0 - 0.01 * np.mean(2 * (2 * x - 1) * x)
    np.testing.assert_allclose(float(value), np.mean((2 * x - 1) ** 2), rtol=1e-5)
    np.testing.assert_allclose(float(weight.value), new, rtol=1e-5)
    np.testing.assert_allclose(float(mean.result()), np.mean((new * x - 1) ** 2), rtol=1e-5)


def test_several_losses_a_row_are_no_rows(recwarn):
    strategy, batch = pieces_of("mirrored_2", np.ones((3, 4)))
    strategy.run(lambda rows: rx.nn.compute_average_loss(rows.ravel()), args=(batch,))
    assert not [one for one in recwarn if "compute_average_loss" in str(one.message)]


def shape_only(x):
    """Values that differ by the number of rows, not by data."""
    return x.shape[0], jnp.ones(x.shape).sum(), 1 / jnp.float32(x.shape[0] + 1), "text", 7


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("rows", [2, 4, 5, 7])
@pytest.mark.parametrize("name", THREE)
def test_values_made_from_the_number_of_rows_differ(name, rows, compiled):
    strategy, batch = pieces_of(name, np.zeros(rows))
    sizes = [len(part) for part in batch.values]

    def step(x):
        return strategy.run(shape_only, args=(x,))

    count, ones, inverse, text, seven = (rx.function(step) if compiled else step)(batch)
    assert [int(v) for v in count.values] == sizes
    assert [float(v) for v in ones.values] == sizes
    np.testing.assert_allclose([float(v) for v in inverse.values], [1 / (n + 1) for n in sizes])
    assert float(strategy.reduce("SUM", ones, None)) == rows
    assert (text, seven) == ("text", 7)


def test_branching_on_the_number_of_rows_is_refused_where_replicas_would_part(mirrored):
    (batch,) = mirrored.experimental_distribute_dataset([np.zeros(3, "float32")])
    context = rx.get_replica_context
    with pytest.raises(rx.errors.UnevenBatch, match="return or write different things"):
        mirrored.run(lambda x: x.sum() if x.shape[0] == 1 else (x.sum(), 1.0), args=(batch,))
    with pytest.raises(rx.errors.UnevenBatch, match="Gather on every replica"):
        mirrored.run(lambda x: context().all_gather(x, 0) if x.shape[0] == 1 else x, args=(batch,))
