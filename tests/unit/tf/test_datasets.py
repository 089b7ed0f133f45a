"""`replicax.tf.datasets`, with a package of this test in the place of tensorflow-datasets."""

import sys
from types import ModuleType, SimpleNamespace

import keras
import numpy as np
import pytest

import replicax.tf.datasets as tfds
from replicax._core.errors import UsageError
from replicax.data import Dataset


class Source:
    """What `as_data_source` gives: rows by number."""

    def __init__(self, first, last):
        self.numbers = range(first, last)

    def __len__(self):
        return len(self.numbers)

    def __getitem__(self, index):
        number = self.numbers[index]
        image = np.full((2, 2, 1), number, "uint8")
        return {"image": image, "label": np.int64(number % 3), "name": f"row {number}".encode()}


class TheirBuilder:
    def __init__(self, name, *, keys=("image", "label"), **kwargs):
        self.name, self.kwargs, self.prepared = name, kwargs, None
        self.info = SimpleNamespace(supervised_keys=keys, name=name)

    def download_and_prepare(self, **kwargs):
        self.prepared = kwargs

    def as_data_source(self, split=None, *, decoders=None):
        of = {"train": Source(0, 10), "test": Source(10, 14), "none": Source(0, 0)}
        if isinstance(split, list):
            return [of[one] for one in split]
        return of if split is None else of[split]


@pytest.fixture(autouse=True)
def package(monkeypatch):
    made = ModuleType("tensorflow_datasets")
    made.made = []

    def builder(name, *, try_gcs=False, **kwargs):
        made.made.append(TheirBuilder(name, **kwargs))
        return made.made[-1]

    made.builder = builder
    made.Split = SimpleNamespace(TRAIN="train")
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", made)
    return made


def labels(dataset):
    return [int(row["label"]) for row in dataset]


def test_splits(package):
    train = tfds.load("some", split=tfds.Split.TRAIN, data_dir="/there")
    assert isinstance(train, Dataset)
    assert len(train) == 10
    assert labels(train) == [n % 3 for n in range(10)]
    row = next(iter(train.skip(4)))
    assert row["image"].tolist() == [[[4], [4]], [[4], [4]]] and row["name"] == b"row 4"
    assert package.made[-1].kwargs == {"data_dir": "/there", "file_format": "array_record"}
    assert package.made[-1].prepared == {}
    everything = tfds.load("some")
    assert {name: len(one) for name, one in everything.items()} == {
        "train": 10,
        "test": 4,
        "none": 0,
    }
    first, second = tfds.load("some", split=["test", "train"], download=False)
    assert (len(first), len(second)) == (4, 10)
    assert package.made[-1].prepared is None


def test_supervised_elements_and_info():
    dataset, info = tfds.load("some", split="train", as_supervised=True, with_info=True)
    image, label = next(iter(dataset.batch(3)))
    assert image.shape == (3, 2, 2, 1) and label.tolist() == [0, 1, 2]
    assert info.name == "some"
    nested = {"a": "name", "b": ("label", "image")}
    kwargs = {"keys": (nested, "label")}
    inputs, label = next(
        iter(tfds.load("some", split="test", as_supervised=True, builder_kwargs=kwargs))
    )
    assert inputs["a"] == b"row 10" and inputs["b"][0] == label == 1
    with pytest.raises(UsageError, match="'some'"):
        tfds.load("some", split="test", as_supervised=True, builder_kwargs={"keys": None})


def test_batches_and_shuffled_rows():
    batches = tfds.load("some", split="train", batch_size=4)
    assert [len(batch["label"]) for batch in tfds.as_numpy(batches)] == [4, 4, 2]
    whole = tfds.load("some", split="train", batch_size=-1)
    assert whole["label"].tolist() == [n % 3 for n in range(10)]
    shuffled = tfds.load("some", split="train", shuffle_files=True)
    orders = [[row["name"].item() for row in shuffled] for _ in range(3)]
    assert all(sorted(order) == sorted(f"row {n}".encode() for n in range(10)) for order in orders)
    assert len({tuple(order) for order in orders}) > 1
    assert len(tfds.load("some", split="none", shuffle_files=True)) == 0


def test_a_builder():
    builder = tfds.builder("some", file_format="parquet")
    builder.download_and_prepare(max_examples=2)
    assert builder.prepared == {"max_examples": 2}
    assert builder.kwargs == {"file_format": "parquet"}
    assert len(builder.as_dataset("test", as_supervised=True)) == 4


def test_a_model_trains_on_it():
    dataset = tfds.load("some", split="train", as_supervised=True).batch(5)
    model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(3)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    assert np.isfinite(model.fit(dataset, verbose=0).history["loss"][0])


def test_the_package_is_asked_for(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    with pytest.raises(ImportError, match="pip install tensorflow-datasets"):
        tfds.load("some")
    with pytest.raises(ImportError, match="pip install"):
        _ = tfds.features
