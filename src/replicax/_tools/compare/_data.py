"""The data sets of `compare`, as arrays in a fixed order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, final

import numpy as np

import replicax as rx
from replicax._core.errors import needs

if TYPE_CHECKING:
    from replicax._tools.compare._settings import Settings

_Arrays = tuple[np.ndarray, np.ndarray]


@final
@dataclass(frozen=True)
class Dataset:
    """The data that a model is trained and tested on, with ten classes.

    Images have values from 0 to 1 and the shape (n, height, width, channels).
    """

    train_inputs: np.ndarray
    train_classes: np.ndarray
    test_inputs: np.ndarray
    test_classes: np.ndarray


def load(settings: Settings) -> Dataset:
    """Load the data of `settings`, shuffled once by its seed.

    Every strategy then sees the same batches in the same order, because nobody shuffles again.
    """
    if settings.dataset not in _LOADERS:
        raise rx.errors.UsageError(
            f"`dataset` must be one of {', '.join(_LOADERS)}. Received: {settings.dataset!r}. "
            "These are the data sets that `compare` can prepare. Choose one of them."
        )
    data = _LOADERS[settings.dataset](settings)
    if settings.examples is None:
        return data
    train, test = settings.examples, -(-settings.examples // 4)
    return replace(
        data,
        train_inputs=data.train_inputs[:train],
        train_classes=data.train_classes[:train],
        test_inputs=data.test_inputs[:test],
        test_classes=data.test_classes[:test],
    )


def _digits(settings: Settings) -> Dataset:
    """The 1797 digits of scikit-learn."""
    with needs("The digits data set", extra="report"):
        from sklearn.datasets import load_digits  # slow to import, and only needed here

    images, classes = load_digits(return_X_y=True)
    order = np.random.default_rng(settings.seed).permutation(len(images))
    train, test = _split(images[order].reshape(-1, 8, 8, 1), classes[order])
    return Dataset(*_scaled(train, 16), *_scaled(test, 16))


def _cifar10(settings: Settings) -> Dataset:
    (images, classes), test = _download_cifar10()
    order = np.random.default_rng(settings.seed).permutation(len(images))
    return Dataset(*_scaled((images[order], classes[order]), 255), *_scaled(test, 255))


_LOADERS = {"digits": _digits, "cifar10": _cifar10}
DATASETS = tuple(_LOADERS)


def _download_cifar10() -> tuple[_Arrays, _Arrays]:
    import keras

    try:
        return keras.datasets.cifar10.load_data()
    except Exception as error:  # Keras raises a plain Exception when a download fails
        raise rx.errors.ReplicaxError(
            "CIFAR-10 must be downloaded once before it can be used. "
            f"Received: {error or type(error).__name__}. "
            "This machine may have no connection, or the server may be down. "
            "Copy ~/.keras/datasets from a machine that has it, or use --dataset digits, which "
            "needs no download."
        ) from error


def _split(inputs: np.ndarray, classes: np.ndarray) -> tuple[_Arrays, _Arrays]:
    """Four fifths for training, one for testing."""
    cut = len(inputs) * 8 // 10
    return (inputs[:cut], classes[:cut]), (inputs[cut:], classes[cut:])


def _scaled(arrays: _Arrays, brightest: int) -> _Arrays:
    images, classes = arrays
    return images.astype(np.float32) / np.float32(brightest), classes.reshape(-1).astype(np.int32)
