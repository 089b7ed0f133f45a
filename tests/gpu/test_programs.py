"""What a program for a GPU calls: cuDNN and cuBLAS, and nothing that is there for CPUs."""

import re

import jax
import keras
import numpy as np
import pytest

import replicax as rx
from replicax._core.topology import Topology
from replicax._cpu import kernels
from replicax._mesh.store import replicated
from replicax._tools.plan.step import described_strategy, lower_train_step

from .cases import BATCH, DEVICE, LABELS, MODELS, compiled

TARGET = re.compile(r'custom_call_target="([^"]+)"')


def program(name, gpu, **how):
    """The text of the step that `fit` would run on a GPU."""
    topology = Topology.of([gpu])
    batch = MODELS[name][1][:BATCH], LABELS[:BATCH]
    step = lower_train_step(
        compiled(name, **how), batch, described_strategy(topology, replicated(topology))
    )
    return step.program.compile().as_text()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_no_kernel_for_cpus_is_called(name, optimizer, gpu):
    found = set(TARGET.findall(program(name, gpu, optimizer=optimizer)))
    assert not found & set(kernels.TARGETS), found
    assert not [one for one in found if "onednn" in one or "ynn" in one]


def test_convolutions_go_to_cudnn(gpu):
    assert "cudnn" in program("convolutions", gpu)


@pytest.mark.parametrize("types", ["bfloat16", "float16"])
def test_attention_goes_through_cudnn(types, gpu):
    """`dot_product_attention` with 16 bits and heads that cuDNN takes, forwards and back."""
    shape = (2, 128, 4, 64)
    rows = [np.random.default_rng(k).normal(size=shape).astype(types) for k in range(3)]
    strategy = rx.OneDeviceStrategy(DEVICE)

    def loss(query, key, value):
        found = keras.ops.dot_product_attention(query, key, value, flash_attention=True)
        return keras.ops.sum(keras.ops.cast(found, "float32") ** 2)

    step = jax.jit(jax.grad(loss, (0, 1, 2)))
    arrays = [jax.device_put(one, gpu) for one in rows]
    text = step.lower(*arrays).compile().as_text()
    assert any("fmha" in one.lower() for one in TARGET.findall(text)), TARGET.findall(text)
    by_strategy = strategy.run(step, args=tuple(arrays))
    for ours, own in zip(by_strategy, step(*arrays), strict=True):
        np.testing.assert_array_equal(np.asarray(ours), np.asarray(own))
