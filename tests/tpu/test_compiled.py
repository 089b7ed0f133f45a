"""What a step under `TPUStrategy` becomes on TPUs, by their own compiler, which needs no TPU.

The slices are described, not there. `fit` makes the same step for them, see _plan/_compiled.py.
"""

from __future__ import annotations

import re

import jax
import keras
import numpy as np
import pytest

import replicax as rx
from replicax._core.topology import Topology
from replicax._mesh.logical_devices import split_over_model
from replicax._mesh.store import replicated
from replicax._plan._compiled import described_strategy, lower_train_step
from replicax._plan._targets import target

pytestmark = pytest.mark.timeout(240)

SLICES = ["v5e:2x4", "v4:2x2x2"]
COLLECTIVE = re.compile(
    r"= (.*?) (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(-start)?\("
)
SHAPE = re.compile(r"[a-z]+\d+\[([\d,]*)\]")


def images(rows, size):
    x = jax.ShapeDtypeStruct((rows, size, size, 3), "float32")
    return x, jax.ShapeDtypeStruct((rows,), "int32")


def cnn():
    """The net of `replicax compare`, for CIFAR-10."""
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((32, 32, 3)),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.BatchNormalization(),
            layers.MaxPooling2D(),
            layers.Conv2D(64, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dropout(0.5),
            layers.Dense(10),
        ]
    )


def resnet():
    return keras.applications.ResNet50(weights=None, input_shape=(64, 64, 3), classes=10)


def transformer():
    """One block of a decoder, over 16 tokens of a vocabulary of 100."""
    layers = keras.layers
    tokens = keras.Input((16,), dtype="int32")
    x = layers.Embedding(100, 64)(tokens)
    normed = layers.LayerNormalization()(x)
    x = x + layers.MultiHeadAttention(4, 16)(normed, normed, use_causal_mask=True)
    x = x + layers.Dense(64)(layers.Dense(256, activation="gelu")(layers.LayerNormalization()(x)))
    return keras.Model(tokens, layers.Dense(100)(x))


MODELS = {
    "cnn": (cnn, images(64, 32)),
    "resnet": (resnet, images(64, 64)),
    "transformer": (transformer, (jax.ShapeDtypeStruct((64, 16), "int32"),) * 2),
}


def compiled(name, slice_name):
    """The model, and its train step for all devices of a slice."""
    make, batch = MODELS[name]
    model = make()
    logits = name != "resnet"
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=logits)
    model.compile(keras.optimizers.Adam(), loss, metrics=["accuracy"])
    topology = Topology.of(target(slice_name).devices)
    strategy = described_strategy(topology, replicated(topology))
    return model, lower_train_step(model, batch, strategy).program.compile()


def collectives(text):
    """For each collective operation of a program: its kind, and the shapes that it combines."""
    return [
        (kind, [tuple(map(int, filter(None, s.split(",")))) for s in SHAPE.findall(shapes)])
        for shapes, kind, _ in COLLECTIVE.findall(text)
    ]


@pytest.mark.parametrize("slice_name", SLICES)
@pytest.mark.parametrize("name", MODELS)
def test_a_step_combines_gradients_and_gathers_nothing(name, slice_name):
    model, program = compiled(name, slice_name)
    text = program.as_text()
    assert "num_partitions=8" in text
    found = collectives(text)
    assert {kind for kind, _ in found} == {"all-reduce"}
    reduced = sum(int(np.prod(shape)) for _, shapes in found for shape in shapes)
    learnt = sum(int(np.prod(v.shape)) for v in model.trainable_variables)
    # Every gradient once; beside them the loss, metrics, and statistics of batch normalization.
    assert learnt <= reduced <= 1.05 * learnt + 100, (learnt, reduced)
    statistics = sum(isinstance(layer, keras.layers.BatchNormalization) for layer in model.layers)
    # XLA merges the gradients; each batch normalization has to wait for its own, both ways.
    assert len(found) <= 2 * statistics + 6


def test_memory_of_a_step_is_that_of_its_variables():
    model, program = compiled("cnn", "v5e:2x4")
    memory = program.memory_analysis()
    numbers = sum(int(np.prod(v.shape)) for v in model.variables)
    numbers += sum(int(np.prod(v.shape)) for v in model.optimizer.variables)
    batch = 64 // 8 * (32 * 32 * 3 + 1)
    # Four bytes each, and the padding that a TPU gives small arrays.
    assert 4 * (numbers + batch) <= memory.argument_size_in_bytes <= 1.3 * 4 * (numbers + batch)


def test_split_images_exchange_borders_on_a_tpu():
    topology = Topology.of(target("v5e:2x4").devices, 4)
    kernel = np.ones((3, 3, 8, 8), "float32")

    def convolved(images):
        images = split_over_model(images, [1, 2, 2, 1], topology)
        return keras.ops.conv(images, kernel, padding="same")

    images = jax.ShapeDtypeStruct((4, 32, 32, 8), "float32", sharding=topology.split)
    found = collectives(jax.jit(convolved).lower(images).compile().as_text())
    assert {kind for kind, _ in found} == {"collective-permute"}


def test_a_described_tpu_is_none_to_run_on():
    described = rx.tpu.experimental.Topology.of(target("v5e:2x4").devices)
    assert described.mesh_shape.tolist() == [2, 4, 1, 1]
    assert described.num_tpus_per_task == 4
    pairs = rx.tpu.experimental.DeviceAssignment.build(described, [2, 1, 1, 1], num_replicas=4)
    resolver = rx.cluster_resolver.TPUClusterResolver(fallback="cpu", environ={})
    with pytest.raises(rx.errors.UnknownDevice, match="'TPU v5 lite'|TPU v5 lite"):
        rx.TPUStrategy(resolver, pairs)
