"""`tf.debugging` in closures: the worker checks, and nothing of what fails reaches a server."""

import jax
import numpy as np
import pytest
from jax._src import core

import replicax as rx
import replicax.tf as tf


@pytest.fixture
def coordinator(started):
    return rx.coordinator.ClusterCoordinator(started())


def checks(loss):
    tf.debugging.assert_less(loss, 10.0, message="too large")


def asserts(loss):
    assert loss < 10.0, "too large"


@pytest.mark.parametrize("check", [checks, asserts])
def test_a_check_that_fails_ends_its_closure_and_changes_nothing(coordinator, check, monkeypatch):
    monkeypatch.setattr("replicax._core.seams.speaks_tensorflow", True)
    with coordinator.strategy.scope():
        weight, total = tf.Variable(2.0), tf.Variable(0.0)
        optimizer = tf.keras.optimizers.SGD(0.5)

    @tf.function
    def step(x):
        total.assign_add(x)
        with tf.GradientTape() as tape:
            loss = weight * x
            check(loss)
        optimizer.apply_gradients([(tape.gradient(loss, weight), weight)])
        return loss

    assert float(coordinator.schedule(step, args=(np.float32(1.0),)).fetch()) == 2.0
    coordinator.join()
    with pytest.raises(tf.errors.InvalidArgumentError, match="too large"):
        coordinator.schedule(step, args=(np.float32(100.0),)).fetch()
    with pytest.raises(tf.errors.InvalidArgumentError):
        coordinator.join()
    assert (weight.numpy(), total.numpy()) == (1.5, 1.0)
    assert float(coordinator.schedule(step, args=(np.float32(2.0),)).fetch()) == 3.0
    coordinator.join()
    assert (weight.numpy(), total.numpy()) == (0.5, 3.0)


def test_a_check_in_a_loop_of_the_program_is_refused(coordinator):
    @tf.function
    def step(x):
        for _ in tf.range(x):
            tf.debugging.assert_less(x, 10)
        return x

    with pytest.raises(rx.errors.UsageError):
        coordinator.schedule(step, args=(np.int32(3),)).fetch()


def test_no_traced_value_outlives_its_trace(coordinator, monkeypatch):
    # JAX would look for who keeps the values, for longer than anybody waits.
    monkeypatch.setattr(core, "leaked_tracer_error", lambda name, trace, kept: AssertionError(kept))
    with coordinator.strategy.scope():
        table, count = rx.Variable(np.ones((4, 2), "float32")), rx.Variable(0.0)
        optimizer = tf.keras.optimizers.SGD(0.5)
        optimizer.build([table])
    data = rx.data.Dataset.from_tensor_slices(np.array([[0, 1], [1, 2]])).repeat()
    ids = iter(coordinator.create_per_worker_dataset(data))

    @rx.function
    def step(ids):
        with rx.GradientTape() as tape:
            loss = tf.reduce_sum(rx.nn.embedding_lookup(table, next(ids)))
            checks(loss)
        optimizer.apply_gradients([(tape.gradient(loss, table), table)])
        count.assign_add(1.0)
        return loss

    with jax.checking_leaks():
        losses = [float(coordinator.schedule(step, (ids,)).fetch()) for _ in range(2)]
        coordinator.join()
    assert (losses, count.numpy()) == ([4.0, 3.0], 2.0)  # row 1 is 0.5 after the first step
    assert table.numpy()[:, 0].tolist() == [0.5, 0.0, 0.5, 1.0]
