"""The data sets: fixed order, fixed split, values from 0 to 1."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from sklearn.datasets import load_digits

import replicax as rx
from replicax._tools.compare.subjects import load_data
from replicax.report import Settings


@pytest.fixture
def tiny_cifar10(monkeypatch):
    """Stand in for the download: ten images as bright as their class, six to train on."""
    images = np.arange(10, dtype=np.uint8).reshape(-1, 1, 1, 1) * np.ones((32, 32, 3), np.uint8)
    classes = np.arange(10, dtype=np.uint8).reshape(-1, 1)
    loaded = (images[:6], classes[:6]), (images[6:], classes[6:])
    monkeypatch.setattr("keras.datasets.cifar10.load_data", lambda: loaded)


def test_digits_are_split_80_to_20():
    data = load_data(Settings())
    assert data.train_inputs.shape == (1437, 8, 8, 1)
    assert data.test_inputs.shape == (360, 8, 8, 1)
    assert len(data.train_classes) == 1437
    assert len(data.test_classes) == 360


def test_digits_are_all_there_once():
    data = load_data(Settings())
    both = np.concatenate([data.train_inputs, data.test_inputs]).reshape(-1, 64)
    original = load_digits().data.astype(np.float32) / 16
    assert np.array_equal(np.unique(both, axis=0), np.unique(original, axis=0))


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


def test_images_are_float32_from_0_to_1_and_classes_int32():
    data = load_data(Settings())
    assert data.train_inputs.dtype == np.float32
    assert (data.train_inputs.min(), data.train_inputs.max()) == (0, 1)
    assert data.train_classes.dtype == np.int32


def test_the_same_seed_gives_the_same_order():
    first, second = load_data(Settings(seed=1)), load_data(Settings(seed=1))
    assert np.array_equal(first.train_inputs, second.train_inputs)


def test_another_seed_gives_another_order():
    first, second = load_data(Settings(seed=1)), load_data(Settings(seed=2))
    assert not np.array_equal(first.train_inputs, second.train_inputs)


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


@pytest.mark.usefixtures("tiny_cifar10")
def test_the_tests_of_cifar10_keep_their_order():
    assert load_data(Settings(dataset="cifar10")).test_classes.tolist() == [6, 7, 8, 9]


def test_a_failed_download_says_what_to_do(monkeypatch):
    def fail():
        raise Exception("URL fetch failure on https://example.org: None -- no route")

    monkeypatch.setattr("keras.datasets.cifar10.load_data", fail)
    with pytest.raises(
        rx.errors.ReplicaxError, match=r"URL fetch failure.*--dataset digits"
    ) as error:
        load_data(Settings(dataset="cifar10"))
    assert not isinstance(error.value, rx.errors.UsageError)


def test_an_unknown_dataset_is_refused():
    with pytest.raises(rx.errors.UsageError, match="any of digits, cifar10"):
        load_data(Settings(dataset="mnist"))
