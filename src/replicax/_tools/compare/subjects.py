"""The data sets of `compare` in a fixed order, and its models, which are smooth everywhere.

ReLU and max-pooling have kinks. Two runs that differ by one rounding error can fall on two sides of
a kink; in measurements on one device, that turned a difference of 1e-7 into 1e-2 within a few
epochs. SiLU and average pooling kept it at 1e-6, as did pixels centred on zero and the learning
rates below; so any remaining difference is due to the strategy. A convolution in front of BatchNorm
has no bias, whose gradient would be zero."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
from keras import layers

import replicax as rx
from replicax._core.errors import needs
from replicax._tools.text import unknown

if TYPE_CHECKING:
    from replicax._tools.compare.settings import Settings


_Arrays = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Dataset:
    """The data that a model is trained and tested on, with ten classes.

    Images have values from 0 to 1 and the shape (n, height, width, channels).
    """

    train_inputs: np.ndarray
    train_classes: np.ndarray
    test_inputs: np.ndarray
    test_classes: np.ndarray


def load_data(settings: Settings) -> Dataset:
    """Load the data of `settings`, shuffled once by its seed.

    Every strategy then sees the same batches in the same order, because nobody shuffles again.
    """
    if settings.dataset not in _LOADERS:
        raise unknown("data set", settings.dataset, _LOADERS)
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


def _download_cifar10() -> tuple[_Arrays, _Arrays]:
    try:
        return keras.datasets.cifar10.load_data()
    except Exception as error:  # Keras raises a plain Exception when a download fails
        raise rx.errors.ReplicaxError(
            f"Cannot download CIFAR-10: {error or type(error).__name__}. Copy ~/.keras/datasets "
            "from a machine that has it, or use --dataset digits, which needs no download."
        ) from error


def _split(inputs: np.ndarray, classes: np.ndarray) -> tuple[_Arrays, _Arrays]:
    """Four fifths for training, one for testing."""
    cut = len(inputs) * 8 // 10
    return (inputs[:cut], classes[:cut]), (inputs[cut:], classes[cut:])


def _scaled(arrays: _Arrays, brightest: int) -> _Arrays:
    images, classes = arrays
    return images.astype(np.float32) / np.float32(brightest), classes.reshape(-1).astype(np.int32)


_Tensor = Any  # a KerasTensor; Keras' annotation of layers' results is too wide to be of use

_ACTIVATION = "silu"
# 0.99, Keras' default, would still remember the initial statistics after these few steps.
_BATCHNORM_MOMENTUM = 0.9


def build_model(name: str, shape: tuple[int, ...]) -> keras.Model:
    """Build the model of that name, which gives one logit for each of ten classes."""
    if name not in _RECIPES:
        raise unknown("model", name, _RECIPES)
    inputs = keras.Input(shape, name="inputs")
    centred = layers.Rescaling(2.0, -1.0, name="centre")(inputs)
    logits = layers.Dense(10, name="logits")(_RECIPES[name][0](centred))
    return keras.Model(inputs, logits, name=name)


def new_optimizer(name: str) -> keras.Optimizer:
    """A new optimizer for the model of that name.

    Its steps are proportional to the gradient. Adam divides by the gradient's size, and so makes as
    much of a gradient of rounding errors as of any other.
    """
    return keras.optimizers.SGD(_RECIPES[name][1], momentum=0.9)


def _mlp(images: _Tensor) -> _Tensor:
    x = layers.Flatten(name="flatten")(images)
    x = layers.Dense(256, activation=_ACTIVATION, name="dense_1")(x)
    return layers.Dense(128, activation=_ACTIVATION, name="dense_2")(x)


def _cnn(images: _Tensor) -> _Tensor:
    """Two convolutions with BatchNorm, each followed by pooling."""
    x = _convolution(images, 32, name="conv_1")
    x = layers.AveragePooling2D(2, name="pool_1")(layers.Activation(_ACTIVATION, name="act_1")(x))
    x = _convolution(x, 64, name="conv_2")
    x = layers.AveragePooling2D(2, name="pool_2")(layers.Activation(_ACTIVATION, name="act_2")(x))
    return layers.Flatten(name="flatten")(x)


def _resnet20(images: _Tensor) -> _Tensor:
    """ResNet-20 of He et al. 2015, section 4.2: shortcuts without parameters; SiLU for ReLU."""
    x = _convolution(images, 16, name="conv")
    x = layers.Activation(_ACTIVATION, name="act")(x)
    for stage, filters in enumerate((16, 32, 64), start=1):
        for block in range(1, 4):
            stride = 2 if stage > 1 and block == 1 else 1
            x = _residual(x, filters, stride=stride, name=f"stage_{stage}_block_{block}")
    return layers.GlobalAveragePooling2D(name="pool")(x)


def _residual(x: _Tensor, filters: int, *, stride: int, name: str) -> _Tensor:
    y = _convolution(x, filters, stride=stride, name=f"{name}_conv_1")
    y = layers.Activation(_ACTIVATION, name=f"{name}_act_1")(y)
    y = _convolution(y, filters, name=f"{name}_conv_2")
    if stride > 1:
        # Every second pixel, and zeros for the new channels.
        x = x[:, ::stride, ::stride, :]
        x = keras.ops.pad(x, [(0, 0), (0, 0), (0, 0), (0, filters - x.shape[-1])])
    return layers.Activation(_ACTIVATION, name=f"{name}_act_2")(
        layers.Add(name=f"{name}_add")([x, y])
    )


def _convolution(x: _Tensor, filters: int, *, name: str, stride: int = 1) -> _Tensor:
    x = layers.Conv2D(filters, 3, strides=stride, padding="same", use_bias=False, name=name)(x)
    return layers.BatchNormalization(momentum=_BATCHNORM_MOMENTUM, name=f"{name}_norm")(x)


# How a model turns images into features, and how fast it learns.
_RECIPES = {"cnn": (_cnn, 0.05), "mlp": (_mlp, 0.05), "resnet20": (_resnet20, 0.01)}
