"""The models of `compare`. Smooth everywhere: equal runs then stay equal up to rounding.

ReLU and max-pooling have kinks. Two runs that differ by one rounding error can fall on two sides
of a kink; in measurements on one device, that turned a difference of 1e-7 into 1e-2 within a few
epochs. SiLU and average pooling kept it at 1e-6, as did pixels centred on zero and the learning
rates below; so what is left is due to the strategy.
A convolution in front of BatchNorm has no bias: its gradient would be zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import keras
from keras import layers

import replicax as rx

if TYPE_CHECKING:
    from collections.abc import Callable

_Tensor = Any  # a KerasTensor; Keras declares what layers return too widely to be of use

_ACTIVATION = "silu"
# 0.99, Keras' default, would still remember the initial statistics after these few steps.
_BATCHNORM_MOMENTUM = 0.9


def build(name: str, shape: tuple[int, ...], *, classes: int = 10, words: int = 0) -> keras.Model:
    """Build the model of that name, which gives one logit per class.

    Args:
        name: One of `NAMES`.
        shape: Of an image, or of a text as numbers from 0 to below `words`.
        classes: How many there are.
        words: How many different words there are; 0 for images.

    Raises:
        replicax.errors.UsageError: If there is none, or it is for other data.
    """
    fitting = [model for model, recipe in _RECIPES.items() if recipe.reads_words == bool(words)]
    if name not in fitting:
        raise rx.errors.UsageError(
            f"`model` must be one of {', '.join(fitting)} for these data. Received: {name!r}. "
            f"`compare` can build {', '.join(_RECIPES)}; a transformer is for words, the others "
            "are for images. Choose one that fits, or leave it out."
        )
    inputs = keras.Input(shape, dtype="int32" if words else "float32", name="inputs")
    features = _RECIPES[name].features(inputs if words else _centred(inputs), words)
    logits = layers.Dense(classes, name="logits")(features)
    return keras.Model(inputs, logits, name=name)


def _centred(images: _Tensor) -> _Tensor:
    return layers.Rescaling(2.0, -1.0, name="centre")(images)


def optimizer(name: str) -> keras.Optimizer:
    """A new optimizer for the model of that name.

    Its steps are proportional to the gradient. Adam's are not: it divides by the gradient's size,
    and so makes as much of a gradient of rounding errors as of any other.
    """
    return keras.optimizers.SGD(_RECIPES[name].learning_rate, momentum=0.9)


def _mlp(images: _Tensor, _words: int) -> _Tensor:
    """Two dense layers."""
    x = layers.Flatten(name="flatten")(images)
    x = layers.Dense(256, activation=_ACTIVATION, name="dense_1")(x)
    return layers.Dense(128, activation=_ACTIVATION, name="dense_2")(x)


def _cnn(images: _Tensor, _words: int) -> _Tensor:
    """Two convolutions with BatchNorm, each followed by pooling."""
    x = _convolution(images, 32, name="conv_1")
    x = layers.AveragePooling2D(2, name="pool_1")(layers.Activation(_ACTIVATION, name="act_1")(x))
    x = _convolution(x, 64, name="conv_2")
    x = layers.AveragePooling2D(2, name="pool_2")(layers.Activation(_ACTIVATION, name="act_2")(x))
    return layers.Flatten(name="flatten")(x)


def _resnet20(images: _Tensor, _words: int) -> _Tensor:
    """ResNet-20 of He et al. 2015, section 4.2: shortcuts without parameters; SiLU for ReLU."""
    x = _convolution(images, 16, name="conv")
    x = layers.Activation(_ACTIVATION, name="act")(x)
    for stage, filters in enumerate((16, 32, 64), start=1):
        for block in range(1, 4):
            stride = 2 if stage > 1 and block == 1 else 1
            x = _residual(x, filters, stride=stride, name=f"stage_{stage}_block_{block}")
    return layers.GlobalAveragePooling2D(name="pool")(x)


def _transformer(numbers: _Tensor, words: int) -> _Tensor:
    """An embedding, attention of every word to every word, and a dense layer on their mean.

    Attention has no bias: that of the keys would get no gradient.
    """
    width = 32
    # From the small values that Keras begins with it would learn nothing for some epochs.
    start: Any = keras.initializers.RandomNormal(stddev=1.0, seed=0)
    x = layers.Embedding(words, width, start, name="embedding")(numbers)
    x = layers.LayerNormalization(name="norm_1")(x)
    attended = layers.MultiHeadAttention(2, width // 2, use_bias=False, name="attention")(x, x)
    x = layers.GlobalAveragePooling1D(name="pool")(layers.Add(name="add")([x, attended]))
    x = layers.LayerNormalization(name="norm_2")(x)
    return layers.Dense(2 * width, activation=_ACTIVATION, name="dense")(x)


def _residual(x: _Tensor, filters: int, *, stride: int, name: str) -> _Tensor:
    y = _convolution(x, filters, stride=stride, name=f"{name}_conv_1")
    y = layers.Activation(_ACTIVATION, name=f"{name}_act_1")(y)
    y = _convolution(y, filters, name=f"{name}_conv_2")
    if stride > 1:
        # Every second pixel, and zeros for the channels that are new.
        x = x[:, ::stride, ::stride, :]
        x = keras.ops.pad(x, [(0, 0), (0, 0), (0, 0), (0, filters - x.shape[-1])])
    return layers.Activation(_ACTIVATION, name=f"{name}_act_2")(
        layers.Add(name=f"{name}_add")([x, y])
    )


def _convolution(x: _Tensor, filters: int, *, name: str, stride: int = 1) -> _Tensor:
    x = layers.Conv2D(filters, 3, strides=stride, padding="same", use_bias=False, name=name)(x)
    return layers.BatchNormalization(momentum=_BATCHNORM_MOMENTUM, name=f"{name}_norm")(x)


@final
@dataclass(frozen=True)
class _Recipe:
    """How a model turns inputs into features, how fast it learns, and what it is for."""

    features: Callable[[_Tensor, int], _Tensor]
    learning_rate: float
    reads_words: bool = False


_RECIPES = {
    "cnn": _Recipe(_cnn, 0.05),
    "mlp": _Recipe(_mlp, 0.05),
    "resnet20": _Recipe(_resnet20, 0.01),
    "transformer": _Recipe(_transformer, 0.02, reads_words=True),
}
NAMES = tuple(_RECIPES)
