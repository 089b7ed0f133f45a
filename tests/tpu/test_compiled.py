"""What a step under `TPUStrategy` becomes on TPUs, by their own compiler, which needs no TPU.

The slices are described, not there. `fit` makes the same step: see _tools/plan/step.py.
"""

import functools
import re

import jax
import keras
import numpy as np
import pytest
from jax.extend.backend import get_compile_options

import replicax as rx
from replicax._core.topology import Topology
from replicax._mesh.store import replicated
from replicax._tools.plan.step import described_strategy, lower_train_step
from replicax._tools.plan.targets import target
from replicax.strategies._tpu import split_over_model

pytestmark = pytest.mark.timeout(240)

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
    """Bottlenecks as those of ResNet-50, one that halves the image and one that does not."""
    layers = keras.layers

    def normed(x, filters, size, strides=1):
        return layers.BatchNormalization()(layers.Conv2D(filters, size, strides, "same")(x))

    def bottleneck(x, shortcut, strides):
        x = keras.ops.relu(normed(x, 64, 1, strides))
        x = keras.ops.relu(normed(x, 64, 3))
        return keras.ops.relu(normed(x, 256, 1) + shortcut)

    image = keras.Input((32, 32, 3))
    x = keras.ops.relu(normed(image, 64, 7, 2))
    x = bottleneck(x, normed(x, 256, 1, 2), 2)
    x = layers.GlobalAveragePooling2D()(bottleneck(x, x, 1))
    return keras.Model(image, layers.Dense(10, activation="softmax")(x))


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
    "resnet": (resnet, images(64, 32)),
    "transformer": (transformer, (jax.ShapeDtypeStruct((64, 16), "int32"),) * 2),
}


# Less search for fast code and little memory: a third of the time, the same collectives. JAX 0.11
# has no such options.
EFFORTS = ("exec_time_optimization_effort", "memory_fitting_effort")
OPTIONS = get_compile_options(num_replicas=1, num_partitions=1).executable_build_options
QUICKLY = {name: -1.0 for name in EFFORTS if hasattr(OPTIONS, name)}


@pytest.fixture(scope="module")
def model_of():

    @functools.cache
    def model_of(name):
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=name != "resnet")
        model = MODELS[name][0]()
        model.compile(keras.optimizers.Adam(), loss, metrics=["accuracy"])
        return model

    return model_of


@functools.cache
def compiled(model, batch, slice_name):
    """The train step of a model for all devices of a slice."""
    topology = Topology.of(target(slice_name).devices)
    strategy = described_strategy(topology, replicated(topology))
    return lower_train_step(model, batch, strategy).program.compile(compiler_options=QUICKLY)


def collectives(text):
    """For each collective operation of a program: its kind, and the shapes that it combines."""
    return [
        (kind, [tuple(map(int, filter(None, s.split(",")))) for s in SHAPE.findall(shapes)])
        for shapes, kind, _ in COLLECTIVE.findall(text)
    ]


# Each model on one slice, and the one with most operations on a slice of three dimensions, too.
@pytest.mark.parametrize(
    ("name", "slice_name"), [*((name, "v5e:2x4") for name in MODELS), ("resnet", "v4:2x2x2")]
)
def test_a_step_combines_gradients_and_gathers_nothing(model_of, name, slice_name):
    model = model_of(name)
    text = compiled(model, MODELS[name][1], slice_name).as_text()
    assert "num_partitions=8" in text
    found = collectives(text)
    assert {kind for kind, _ in found} == {"all-reduce"}
    reduced = sum(int(np.prod(shape)) for _, shapes in found for shape in shapes)
    learnt = sum(int(np.prod(v.shape)) for v in model.trainable_variables)
    # Every gradient once; beside them the loss, metrics, and statistics of batch normalization.
    assert learnt <= reduced <= 1.05 * learnt + 100, (learnt, reduced)
    statistics = sum(isinstance(layer, keras.layers.BatchNormalization) for layer in model.layers)
    # All gradients, the loss and the metrics go in one or two. Each batch normalization has to wait
    # for its mean, then its variance, and on the way back for the sums of their gradients.
    assert len(found) <= 4 * statistics + 2


def test_memory_of_a_step_is_that_of_its_variables(model_of):
    model = model_of("transformer")
    memory = compiled(model, MODELS["transformer"][1], "v5e:2x4").memory_analysis()
    numbers = sum(int(np.prod(v.shape)) for v in model.variables)
    numbers += sum(int(np.prod(v.shape)) for v in model.optimizer.variables)
    batch = 64 // 8 * 2 * 16
    # Four bytes each, and the padding that a TPU gives small arrays.
    assert 4 * (numbers + batch) <= memory.argument_size_in_bytes <= 2 * 4 * (numbers + batch)


def test_split_images_exchange_borders_on_a_tpu():
    topology = Topology.of(target("v5e:2x4").devices, 4)
    kernel = np.ones((3, 3, 8, 8), "float32")

    def convolved(images):
        images = split_over_model(images, [1, 2, 2, 1], topology)
        # A sum, because a result has to be whole over the axis `model`.
        return keras.ops.sum(keras.ops.conv(images, kernel, padding="same"), (1, 2, 3))

    images = jax.ShapeDtypeStruct((4, 32, 32, 8), "float32", sharding=topology.split)
    found = collectives(jax.jit(convolved).lower(images).compile().as_text())
    assert {kind for kind, _ in found} == {"all-reduce", "collective-permute"}


def test_a_described_tpu_is_none_to_run_on():
    described = rx.tpu.experimental.Topology.of(target("v5e:2x4").devices)
    assert described.mesh_shape.tolist() == [2, 4, 1, 1]
    assert described.num_tpus_per_task == 4
    pairs = rx.tpu.experimental.DeviceAssignment.build(described, [2, 1, 1, 1], num_replicas=4)
    resolver = rx.cluster_resolver.TPUClusterResolver(fallback="cpu", environ={})
    with pytest.raises(rx.errors.UnknownDevice, match=r"\(TPU v5 lite\).*`replicax plan`"):
        rx.TPUStrategy(resolver, pairs)
