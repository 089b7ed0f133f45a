"""The data sets of `compare`, as arrays in a fixed order.

The files of CIFAR-10 are read in `_cifar.py`, headlines made up in `_headlines.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, final

import numpy as np

import replicax as rx
from replicax._core.extras import needs
from replicax._tools.compare._cifar import read_cifar10
from replicax._tools.compare._headlines import as_numbers, headlines, vocabulary

if TYPE_CHECKING:
    from replicax._tools.compare._settings import Settings

_Arrays = tuple[np.ndarray, np.ndarray]


@final
@dataclass(frozen=True)
class Dataset:
    """What a model is trained and tested on, and the classes to learn.

    Images have values from 0 to 1 and the shape (n, height, width, channels). Headlines are
    numbers of words, from 0 to below `words`, of the shape (n, length).
    """

    train_inputs: np.ndarray
    train_classes: np.ndarray
    test_inputs: np.ndarray
    test_classes: np.ndarray
    classes: int = 10
    words: int = 0


def load(settings: Settings) -> Dataset:
    """Load what `settings` asks for, shuffled once by its seed.

    Every strategy then sees the same batches in the same order, because nobody shuffles again.

    Raises:
        replicax.errors.UsageError: If there is no such data set, its files are wrong, or the
            package that it comes with is missing.
        replicax.errors.ReplicaxError: If it cannot be downloaded.
    """
    if settings.dataset not in _LOADERS:
        raise rx.errors.UsageError(
            f"`dataset` must be one of {', '.join(_LOADERS)}. Received: {settings.dataset!r}. "
            "These are the data sets that `compare` can prepare. Choose one of them."
        )
    if settings.dataset != "cifar10" and settings.data_dir is not None:
        raise rx.errors.UsageError(
            f"The {settings.dataset} are not read from a folder. "
            f"Received: dataset={settings.dataset!r} and data_dir={settings.data_dir!r}. "
            "They come with scikit-learn or are made up. Leave out the folder, or ask for cifar10."
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
    with needs("The digits come with the package scikit-learn", extra="report"):
        from sklearn.datasets import load_digits  # slow to import, and only needed here

    images, classes = load_digits(return_X_y=True)
    order = np.random.default_rng(settings.seed).permutation(len(images))
    train, test = _split(images[order].reshape(-1, 8, 8, 1), classes[order])
    return Dataset(*_scaled(train, 16), *_scaled(test, 16))


def _headlines(settings: Settings) -> Dataset:
    """The headlines, which are in no order."""
    texts, labels = headlines(settings.seed)
    train, test = _split(as_numbers(texts), labels.astype(np.int32))
    return Dataset(*train, *test, classes=2, words=len(vocabulary()) + 1)


def _cifar10(settings: Settings) -> Dataset:
    if settings.data_dir is not None:
        (images, classes), test = read_cifar10(Path(settings.data_dir))
    else:
        (images, classes), test = _download_cifar10()
    order = np.random.default_rng(settings.seed).permutation(len(images))
    return Dataset(*_scaled((images[order], classes[order]), 255), *_scaled(test, 255))


_LOADERS = {"digits": _digits, "cifar10": _cifar10, "headlines": _headlines}
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
            "Download it elsewhere and name its folder with --data-dir: data_batch_1 to "
            "data_batch_5 and test_batch (the Python version), or the same names with .bin "
            "(the binary version). Or use --dataset digits, which needs no download."
        ) from error


def _split(inputs: np.ndarray, classes: np.ndarray) -> tuple[_Arrays, _Arrays]:
    """Four fifths to train on, one to test on."""
    cut = len(inputs) * 8 // 10
    return (inputs[:cut], classes[:cut]), (inputs[cut:], classes[cut:])


def _scaled(arrays: _Arrays, brightest: int) -> _Arrays:
    images, classes = arrays
    return images.astype(np.float32) / np.float32(brightest), classes.reshape(-1).astype(np.int32)
