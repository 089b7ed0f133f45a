"""`TPUStrategy` on virtual CPU devices; what TPUs compile is in tests/tpu."""

from __future__ import annotations

import logging

import jax
import keras
import numpy as np
import pytest

import replicax as rx
from replicax.cluster_resolver import TPUClusterResolver

from fitting import weight_difference
from helpers import assert_trees_close, batch_of, tanh_data, tanh_net

ROWS, SIZE = 10, 8
SAMPLE = np.random.default_rng(7)
IMAGES = SAMPLE.normal(size=(ROWS, SIZE, SIZE, 3)).astype("float32")
LABELS = SAMPLE.integers(0, 4, ROWS)


def fallback(*kinds):
    return TPUClusterResolver(tpu="auto", fallback=kinds or ("cpu",), environ={})


@pytest.fixture(scope="module")
def strategy():
    return rx.TPUStrategy(fallback())


@pytest.fixture(scope="module")
def squares():
    """Two replicas of four devices each, 2 × 2 in the mesh."""
    resolver = fallback()
    topology = rx.tpu.experimental.initialize_tpu_system(resolver)
    build = rx.tpu.experimental.DeviceAssignment.build
    return rx.TPUStrategy(resolver, build(topology, [2, 2, 1, 1], num_replicas=2))


def test_all_devices_are_replicas(strategy):
    assert strategy.num_replicas_in_sync == 8
    assert strategy.extended.worker_devices == tuple(f"CPU:{number}" for number in range(8))
    assert isinstance(strategy.cluster_resolver, TPUClusterResolver)


def test_without_a_fallback_there_must_be_a_tpu():
    with pytest.raises(rx.errors.ClusterSpecError, match="No TPU on this machine"):
        rx.TPUStrategy()


def test_the_fallback_is_announced_once(caplog):
    resolver = fallback("gpu", "cpu")
    with caplog.at_level(logging.WARNING, logger="replicax"):
        rx.tpu.experimental.initialize_tpu_system(resolver)
        rx.TPUStrategy(resolver)
    (record,) = caplog.records
    said = record.getMessage()
    assert said.startswith("No TPU was found: this runs on 8 CPU devices instead. Looked for:\n")
    assert "TPU_WORKER_HOSTNAMES: not set" in said
    assert 'jax.devices("gpu"): ' in said


def test_a_tpu_that_jax_does_not_have():
    environ = {"TPU_WORKER_HOSTNAMES": "localhost", "TPU_WORKER_ID": "0"}
    with pytest.raises(rx.errors.UnknownDevice, match=r'or of its fallback[^$]*devices\("tpu"'):
        rx.TPUStrategy(TPUClusterResolver(environ=environ))
    with pytest.raises(rx.errors.UnknownDevice, match=r'jax.devices\("gpu"\): '):
        rx.TPUStrategy(fallback("gpu"))


def test_the_system_is_shut_down():
    resolver = fallback()
    topology = rx.tpu.experimental.initialize_tpu_system(resolver)
    assert resolver.get_tpu_system_metadata().topology is topology
    rx.tpu.experimental.shutdown_tpu_system(resolver)
    assert resolver.get_tpu_system_metadata().topology is None


def test_connect_needs_a_tpu(monkeypatch):
    with pytest.raises(rx.errors.ClusterSpecError, match="JAX has none"):
        TPUClusterResolver.connect()
    # Otherwise it joins the hosts and looks at their devices: here, those of the CPU.
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "localhost")
    monkeypatch.setattr(jax, "devices", lambda kind: jax.local_devices(backend="cpu"))
    assert TPUClusterResolver.connect().get_tpu_system_metadata().topology.num_tpus_per_task == 8


def net(strategy=None, dims=None, policy="float32"):
    """A small convolutional net; `dims` says how its images are split."""

    class Split(keras.layers.Layer):
        def call(self, images):
            if dims is None:
                return images
            return strategy.experimental_split_to_logical_devices(images, dims)

    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.Input((SIZE, SIZE, 3)),
            Split(dtype=policy),
            keras.layers.Conv2D(8, 3, padding="same", dtype=policy),
            keras.layers.BatchNormalization(dtype=policy),
            keras.layers.ReLU(),
            keras.layers.Conv2D(8, 3, strides=2, padding="same", dtype=policy),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(4, dtype=policy),
            keras.layers.Activation("linear", dtype="float32"),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), loss, steps_per_execution=2)
    return model


def fitted(model):
    # Batches of 4, 4 and 2: eight replicas do not divide them.
    history = model.fit(IMAGES, LABELS, batch_size=4, epochs=2, shuffle=False, verbose=0)
    return model.get_weights(), history.history["loss"]


@pytest.fixture(scope="module")
def alone():
    return fitted(net())


def test_fit_gives_what_one_device_gives(strategy, alone):
    with strategy.scope():
        model = net()
    weights, losses = fitted(model)
    assert weight_difference(weights, alone[0]) < 1e-4
    np.testing.assert_allclose(losses, alone[1], rtol=1e-5)


def test_fit_of_split_images_gives_what_one_device_gives(squares, alone):
    assert squares.num_replicas_in_sync == 2
    with squares.scope():
        model = net(squares, [1, 2, 2, 1])
    weights, losses = fitted(model)
    assert weight_difference(weights, alone[0]) < 1e-4
    np.testing.assert_allclose(losses, alone[1], rtol=1e-5)


def test_bfloat16_computes_in_bfloat16(strategy, alone):
    with strategy.scope():
        model = net(policy="mixed_bfloat16")
    _, losses = fitted(model)
    assert {variable.dtype for variable in model.trainable_variables} == {"float32"}
    # Eight bits of mantissa: near float32's, and not the same.
    np.testing.assert_allclose(losses, alone[1], rtol=0.05)
    assert losses != alone[1]


def looped(strategy, split=lambda x: x):
    with strategy.scope():
        model = tanh_net()
        optimizer = keras.optimizers.SGD(0.1)

    def step(batch):
        x, y = batch
        loss = lambda: keras.ops.mean((model(split(x)) - y) ** 2)  # noqa: E731
        value, gradients = rx.value_and_grad(loss, model.trainable_variables)()
        optimizer.apply(gradients, model.trainable_variables)
        return value

    data = tanh_data(8, batches=2)
    losses = [
        float(strategy.reduce("SUM", strategy.run(step, args=(batch,)), axis=None))
        for batch in strategy.experimental_distribute_dataset(data)
    ]
    return [*model.get_weights(), losses]


def test_a_custom_loop_gives_what_as_many_mirrored_replicas_give(strategy, squares):
    assert_trees_close(looped(strategy), looped(rx.MirroredStrategy()))
    two = looped(rx.MirroredStrategy(["CPU:0", "CPU:1"]))
    split = squares.experimental_split_to_logical_devices  # the four rows of a replica
    assert_trees_close(looped(squares, lambda x: split(x, [4, 1])), two)


def test_a_split_convolution_exchanges_borders(squares):
    kernel = np.ones((3, 3, 3, 4), "float32")

    def convolved(images):
        images = squares.experimental_split_to_logical_devices(images, [1, 2, 2, 1])
        # A sum, because a result has to be whole over the axis `model`.
        return keras.ops.sum(keras.ops.conv(images, kernel, padding="same"), (1, 2, 3))

    # Of four images two replicas have two each, as in `fit`, and each device a quarter of them.
    images = jax.device_put(IMAGES[:4], squares.extended.distribution.get_data_layout((4,)))
    compiled = jax.jit(convolved).lower(images).compile()
    text = compiled.as_text()
    assert "f32[2,4,4,4]" in text
    assert "collective-permute" in text
    assert "all-gather" not in text
    expected = keras.ops.sum(keras.ops.conv(IMAGES[:4], kernel, padding="same"), (1, 2, 3))
    np.testing.assert_allclose(compiled(images), expected, rtol=1e-4, atol=1e-3)


def test_numbers_stay_in_run(squares):
    def step(rows):
        halves = squares.experimental_split_to_logical_devices(rows, [1, 4])
        whole = squares.experimental_replicate_to_logical_devices(rows)
        return halves * 2 + whole, squares.experimental_assign_to_logical_device(rows.sum(), 3)

    numbers = np.arange(24.0, dtype="float32").reshape(6, 4)
    for rows in (numbers, numbers[:5]):  # three rows on each replica; three and two
        found, sums = squares.run(step, args=(batch_of(squares, rows),))
        np.testing.assert_array_equal(squares.gather(found, axis=0), 3 * rows)
        assert [float(one) for one in sums.values] == [rows[:3].sum(), rows[3:].sum()]


def test_one_device_per_replica_has_nothing_to_split(strategy):
    x = jax.numpy.ones((3, 5))
    assert strategy.experimental_split_to_logical_devices(x, [1, 1]) is x
    assert strategy.experimental_replicate_to_logical_devices(x) is x
    assert strategy.experimental_assign_to_logical_device(x, 0) is x


@pytest.mark.parametrize("dims", [[1, 2], [4], [2, 2, 1], [-2, -2]])
def test_a_split_that_is_none(squares, dims):
    with pytest.raises(rx.errors.UsageError, match="computation_shape"):
        squares.experimental_split_to_logical_devices(np.ones((4, 4)), dims)


def test_a_split_into_uneven_parts(squares):
    with pytest.raises(rx.errors.UsageError, match="Axis 1 of"):
        squares.experimental_split_to_logical_devices(np.ones((4, 6)), [1, 4])


@pytest.mark.parametrize("number", [-1, 4])
def test_a_logical_device_that_is_none(squares, number):
    with pytest.raises(rx.errors.UsageError, match="`logical_device_id`"):
        squares.experimental_assign_to_logical_device(np.ones(3), number)


def test_an_assignment_may_leave_devices_out():
    topology = rx.tpu.experimental.initialize_tpu_system(fallback())
    build = rx.tpu.experimental.DeviceAssignment.build
    strategy = rx.experimental.TPUStrategy(fallback(), build(topology, num_replicas=3))
    assert strategy.extended.worker_devices == ("CPU:0", "CPU:1", "CPU:2")
    assert isinstance(strategy, rx.TPUStrategy)
    assert isinstance(strategy, rx.experimental.TPUStrategy)
