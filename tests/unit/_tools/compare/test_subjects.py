"""The data sets, in fixed order with values from 0 to 1; the models, with sizes by hand."""

import sys

import keras
import numpy as np
import pytest
from sklearn.datasets import load_digits

import replicax as rx
from replicax._tools.compare.subjects import build_model, load_data
from replicax.launch._tool_arguments import MODELS
from replicax.report import Settings


@pytest.fixture
def tiny_cifar10(monkeypatch):
    """Stand in for the download: ten images as bright as their class, six to train on."""
    images = np.arange(10, dtype=np.uint8).reshape(-1, 1, 1, 1) * np.ones((32, 32, 3), np.uint8)
    classes = np.arange(10, dtype=np.uint8).reshape(-1, 1)
    loaded = (images[:6], classes[:6]), (images[6:], classes[6:])
    monkeypatch.setattr("keras.datasets.cifar10.load_data", lambda: loaded)


def test_digits_are_all_there_once_split_80_to_20_and_scaled():
    data = load_data(Settings())
    assert data.train_inputs.shape == (1437, 8, 8, 1)
    assert data.test_inputs.shape == (360, 8, 8, 1)
    assert (len(data.train_classes), len(data.test_classes)) == (1437, 360)
    both = np.concatenate([data.train_inputs, data.test_inputs]).reshape(-1, 64)
    original = load_digits().data.astype(np.float32) / 16
    assert np.array_equal(np.unique(both, axis=0), np.unique(original, axis=0))
    assert (data.train_inputs.dtype, data.train_classes.dtype) == (np.float32, np.int32)
    assert (data.train_inputs.min(), data.train_inputs.max()) == (0, 1)


def test_digits_need_scikit_learn(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(rx.errors.UsageError, match=r"pip install 'replicax\[report\]'"):
        load_data(Settings())


def test_digits_keep_their_classes():
    data = load_data(Settings(examples=50))
    originals = load_digits()
    class_of = {row.tobytes(): c for row, c in zip(originals.data, originals.target, strict=True)}
    rows = data.train_inputs.reshape(-1, 64).astype(np.float64) * 16
    assert [class_of[row.tobytes()] for row in rows] == data.train_classes.tolist()


def test_the_seed_gives_the_order():
    first, second, other = (load_data(Settings(seed=seed)).train_inputs for seed in (1, 1, 2))
    assert np.array_equal(first, second)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize(("limit", "test"), [(64, 16), (65, 17), (1, 1)])
def test_a_limit_takes_the_first_examples_and_a_quarter_of_the_tests(limit, test):
    data, all_ = load_data(Settings(examples=limit)), load_data(Settings())
    assert np.array_equal(data.train_inputs, all_.train_inputs[:limit])
    assert np.array_equal(data.test_inputs, all_.test_inputs[:test])


@pytest.mark.usefixtures("tiny_cifar10")
def test_cifar10_is_shuffled_with_its_classes_and_scaled():
    data = load_data(Settings(dataset="cifar10"))
    assert data.train_inputs.shape == (6, 32, 32, 3)
    brightness = data.train_inputs[:, 0, 0, 0] * 255
    assert np.allclose(brightness, data.train_classes)
    assert sorted(data.train_classes) == [0, 1, 2, 3, 4, 5]
    assert data.train_classes.tolist() != [0, 1, 2, 3, 4, 5]
    assert data.test_classes.tolist() == [6, 7, 8, 9]  # tests keep their order


def test_a_failed_download_says_what_to_do(monkeypatch):
    def fail():
        raise Exception("URL fetch failure on https://example.org: None -- no route")

    monkeypatch.setattr("keras.datasets.cifar10.load_data", fail)
    with pytest.raises(
        rx.errors.ReplicaxError, match=r"URL fetch failure.*--dataset digits"
    ) as error:
        load_data(Settings(dataset="cifar10"))
    assert not isinstance(error.value, rx.errors.UsageError)


@pytest.mark.parametrize(
    ("find", "known"),
    [
        (lambda: load_data(Settings(dataset="mnist")), "any of digits, cifar10"),
        (lambda: build_model("vgg", (8, 8, 1)), "any of cnn, mlp, resnet20"),
    ],
)
def test_what_is_unknown_is_refused(find, known):
    with pytest.raises(rx.errors.UsageError, match=known):
        find()


def trainable(model):
    return sum(int(np.prod(v.shape)) for v in model.trainable_variables)


@pytest.mark.parametrize("shape", [(8, 8, 1), (32, 32, 3)])
@pytest.mark.parametrize("name", MODELS)
def test_every_model_gives_a_logit_per_class(name, shape):
    assert build_model(name, shape).output_shape == (None, 10)


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
def test_no_model_has_a_kink(name):
    layers = build_model(name, (8, 8, 1)).layers
    assert not any(isinstance(layer, keras.layers.MaxPooling2D) for layer in layers)
    activations = {getattr(layer, "activation", None) for layer in layers} - {None}
    assert activations == {keras.activations.silu, keras.activations.linear}
