"""The models: sizes counted by hand, shapes, and smoothness."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import replicax as rx
from replicax._tools.compare.subjects import build_model, new_optimizer
from replicax.launch._tool_arguments import MODELS


def trainable(model):
    return sum(int(np.prod(v.shape)) for v in model.trainable_variables)


@pytest.mark.parametrize("shape", [(8, 8, 1), (32, 32, 3)])
@pytest.mark.parametrize("name", MODELS)
def test_every_model_gives_a_logit_per_class(name, shape):
    assert build_model(name, shape).output_shape == (None, 10)


def test_size_of_the_mlp():
    # 64·256 + 256, 256·128 + 128, 128·10 + 10
    assert trainable(build_model("mlp", (8, 8, 1))) == 16640 + 32896 + 1290


def test_size_of_the_cnn():
    # 9·1·32 + 2·32, 9·32·64 + 2·64, and after two poolings 2·2·64·10 + 10
    assert trainable(build_model("cnn", (8, 8, 1))) == 352 + 18560 + 2570


def test_size_of_resnet20():
    first = 9 * 3 * 16 + 2 * 16
    stage_1 = 6 * (9 * 16 * 16 + 2 * 16)
    stage_2 = 9 * 16 * 32 + 2 * 32 + 5 * (9 * 32 * 32 + 2 * 32)
    stage_3 = 9 * 32 * 64 + 2 * 64 + 5 * (9 * 64 * 64 + 2 * 64)
    expected = first + stage_1 + stage_2 + stage_3 + 64 * 10 + 10
    assert expected == 269722  # the 0.27 million of the paper
    assert trainable(build_model("resnet20", (32, 32, 3))) == expected


def test_resnet20_has_20_layers_with_weights():
    layers = build_model("resnet20", (32, 32, 3)).layers
    kinds = (keras.layers.Conv2D, keras.layers.Dense)
    assert sum(isinstance(layer, kinds) for layer in layers) == 20


def test_a_shortcut_takes_every_second_pixel_and_pads_channels():
    model = build_model("resnet20", (8, 8, 1))
    before = model.get_layer("stage_1_block_3_act_2").output
    branch = model.get_layer("stage_2_block_1_conv_2_norm").output
    added = model.get_layer("stage_2_block_1_add").output
    parts = keras.Model(model.input, [before, branch, added])
    x, y, total = map(np.asarray, parts(np.random.default_rng(0).random((1, 8, 8, 1))))
    shortcut = np.concatenate([x[:, ::2, ::2], np.zeros((1, 4, 4, 16))], axis=-1)
    np.testing.assert_allclose(total, shortcut + y, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", MODELS)
def test_no_convolution_before_batchnorm_has_a_bias(name):
    layers = build_model(name, (8, 8, 1)).layers
    assert not any(layer.use_bias for layer in layers if isinstance(layer, keras.layers.Conv2D))


@pytest.mark.parametrize("name", MODELS)
def test_no_model_has_a_kink(name):
    layers = build_model(name, (8, 8, 1)).layers
    assert not any(isinstance(layer, keras.layers.MaxPooling2D) for layer in layers)
    activations = {getattr(layer, "activation", None) for layer in layers} - {None}
    assert activations == {keras.activations.silu, keras.activations.linear}


def test_weights_have_names_that_tell_where_they_are():
    paths = [weight.path for weight in build_model("cnn", (8, 8, 1)).weights]
    assert paths[:2] == ["conv_1/kernel", "conv_1_norm/gamma"]


def test_optimizers_are_not_shared():
    assert new_optimizer("cnn") is not new_optimizer("cnn")


def test_an_unknown_model_is_refused():
    with pytest.raises(
        rx.errors.UsageError,
        match="any of cnn, mlp, resnet20",
    ):
        build_model("vgg", (8, 8, 1))
