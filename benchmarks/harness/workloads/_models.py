"""Models that many people train, as Keras has them or as its examples write them."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np

from ._workload import Workload

CLASSES = 10
VOCABULARY, LENGTH, WIDTH, HEADS, BLOCKS = 4096, 128, 256, 4, 4
NOISE = 100  # numbers that a picture is made of
WORDS, MEMORY = 80, 128  # of a text, and of what an LSTM keeps
TABLES, ROWS, ROW, NUMBERS = 26, 10_000, 16, 13

Rows = tuple[Any, np.ndarray]


def images(size: int, rows: int, random: np.random.Generator) -> Rows:
    """Pictures of one class each."""
    inputs = random.random((rows, size, size, 3), np.float32)
    return inputs, random.integers(0, CLASSES, rows).astype("int32")


def masks(size: int, rows: int, random: np.random.Generator) -> Rows:
    """Pictures of which each pixel has a class."""
    inputs = random.random((rows, size, size, 3), np.float32)
    return inputs, random.integers(0, 2, (rows, size, size)).astype("int32")


def tokens(
    rows: int, random: np.random.Generator, vocabulary: int = VOCABULARY, length: int = LENGTH
) -> Rows:
    """Texts with the next word for each word."""
    found = random.integers(0, vocabulary, (rows, length + 1)).astype("int32")
    return found[:, :-1], found[:, 1:]


def reviews(rows: int, random: np.random.Generator) -> Rows:
    inputs = random.integers(0, VOCABULARY, (rows, WORDS)).astype("int32")
    return inputs, random.integers(0, 2, rows).astype("int32")


def clicks(rows: int, random: np.random.Generator) -> Rows:
    categories = (random.random((rows, TABLES)) ** 2 * ROWS).astype("int32")  # few are frequent
    numbers = random.random((rows, NUMBERS), np.float32)
    labels = random.integers(0, 2, (rows, 1)).astype("float32")
    return {"categories": categories, "numbers": numbers}, labels


def of_keras(name: str, size: int, keras: Any, layers: Any) -> Any:
    """One of `keras.applications`, without its random layers, which differ between sides."""
    make = getattr(keras.applications, name)
    model = make(
        weights=None, input_shape=(size, size, 3), classes=CLASSES, classifier_activation=None
    )
    for layer in model.layers:
        if isinstance(layer, layers.Dropout):
            layer.rate = 0.0
    return model


def unet(size: int, keras: Any, layers: Any) -> Any:
    """Three levels of 32 to 128 filters, and 256 at the bottom."""

    def two(x: Any, filters: int) -> Any:
        for _ in range(2):
            x = layers.Conv2D(filters, 3, padding="same", use_bias=False)(x)
            x = layers.ReLU()(layers.BatchNormalization()(x))
        return x

    inputs = x = keras.Input((size, size, 3))
    across = []
    for filters in (32, 64, 128):
        across.append(x := two(x, filters))
        x = layers.MaxPooling2D()(x)
    x = two(x, 256)
    for filters, same in zip((128, 64, 32), reversed(across), strict=True):
        x = layers.Conv2DTranspose(filters, 2, strides=2)(x)
        x = two(layers.Concatenate()([same, x]), filters)
    return keras.Model(inputs, layers.Conv2D(2, 1, dtype="float32")(x))


def strided(size: int, keras: Any, layers: Any) -> Any:
    """Of DCGAN: strided convolutions, here with as many transposed ones as a decoder."""
    inputs = x = keras.Input((size, size, 3))
    for filters in (64, 128, 256):
        x = layers.LeakyReLU(0.2)(layers.Conv2D(filters, 4, strides=2, padding="same")(x))
    for filters in (128, 64, 32):
        x = layers.Conv2DTranspose(filters, 4, strides=2, padding="same")(x)
        x = layers.LeakyReLU(0.2)(layers.BatchNormalization()(x))
    return keras.Model(inputs, layers.Conv2D(2, 5, padding="same", dtype="float32")(x))


def noise(rows: int, random: np.random.Generator) -> Rows:
    """Numbers to make pictures of, and real pictures."""
    inputs = random.standard_normal((rows, NOISE), np.float32)
    return inputs, 2 * random.random((rows, 28, 28, 1), np.float32) - 1


def generator(keras: Any, layers: Any) -> Any:
    """The generator of TensorFlow's tutorial about DCGAN."""
    inputs = keras.Input((NOISE,))
    x = layers.Dense(7 * 7 * 256, use_bias=False)(inputs)
    x = layers.Reshape((7, 7, 256))(layers.LeakyReLU()(layers.BatchNormalization()(x)))
    for filters, strides in (128, 1), (64, 2):
        x = layers.Conv2DTranspose(filters, 5, strides, padding="same", use_bias=False)(x)
        x = layers.LeakyReLU()(layers.BatchNormalization()(x))
    last = {"activation": "tanh", "dtype": "float32"}
    x = layers.Conv2DTranspose(1, 5, 2, padding="same", use_bias=False, **last)(x)
    return keras.Model(inputs, x)


def discriminator(keras: Any, layers: Any) -> Any:
    """The tutorial's discriminator, without its dropout, which differs between sides."""
    inputs = x = keras.Input((28, 28, 1))
    for filters in (64, 128):
        x = layers.LeakyReLU()(layers.Conv2D(filters, 5, 2, padding="same")(x))
    return keras.Model(inputs, layers.Dense(1, dtype="float32")(layers.Flatten()(x)))


def gpt(
    keras: Any,
    layers: Any,
    *,
    vocabulary: int = VOCABULARY,
    length: int = LENGTH,
    width: int = WIDTH,
    heads: int = HEADS,
    blocks: int = BLOCKS,
) -> Any:
    """Blocks of causal attention and a dense part, normalized before each."""
    inputs = keras.Input((length,), dtype="int32")
    x = layers.Embedding(vocabulary, width)(inputs)
    for _ in range(blocks):
        y = layers.LayerNormalization(epsilon=1e-5)(x)
        y = layers.MultiHeadAttention(heads, width // heads)(y, y, use_causal_mask=True)
        x = layers.Add()([x, y])
        y = layers.LayerNormalization(epsilon=1e-5)(x)
        y = layers.Dense(4 * width, activation="gelu")(y)
        x = layers.Add()([x, layers.Dense(width)(y)])
    x = layers.LayerNormalization(epsilon=1e-5)(x)
    return keras.Model(inputs, layers.Dense(vocabulary, dtype="float32")(x))


def lstm(keras: Any, layers: Any) -> Any:
    inputs = keras.Input((WORDS,), dtype="int32")
    x = layers.Embedding(VOCABULARY, MEMORY)(inputs)
    x = layers.LSTM(MEMORY, return_sequences=True)(x)
    return keras.Model(inputs, layers.Dense(2, dtype="float32")(layers.LSTM(MEMORY)(x)))


def dlrm(keras: Any, layers: Any) -> Any:
    """One table of all categories' rows, their products in pairs, and dense layers."""
    categories = keras.Input((TABLES,), dtype="int32", name="categories")
    numbers = keras.Input((NUMBERS,), name="numbers")
    low = layers.Dense(ROW, activation="relu")(layers.Dense(64, activation="relu")(numbers))
    rows = layers.Embedding(ROWS, ROW)(categories)
    every = layers.Concatenate(axis=1)([layers.Reshape((1, ROW))(low), rows])
    pairs = layers.Flatten()(layers.Dot(2)([every, every]))
    x = layers.Concatenate()([low, pairs])
    for units in (512, 256):
        x = layers.Dense(units, activation="relu")(x)
    out = layers.Dense(1, dtype="float32")(x)
    return keras.Model({"categories": categories, "numbers": numbers}, out)


# Small, since rounding grows from step to step where batches are normalized.
_RATE, _RATE_OF_DEEP = 1e-5, 1e-6
_ADAM = ("Adam", {"learning_rate": 1e-4})
# On TensorFlow, Adam squares the gradient of each occurrence of a row, and elsewhere their sum.
_OF_ROWS = {"tolerance": 1e-2}


def _of_images(
    name: str, title: str, batch: int, model: Any, size: int, draw: Any, rate: float = _RATE
) -> Workload:
    drawn, made = functools.partial(draw, size), functools.partial(model, size)
    sgd = {"learning_rate": rate, "momentum": 0.9}
    return Workload(name, title, batch, 4, drawn, None, made, None, "SGD", sgd)


def _applied(name: str, title: str, size: int, rate: float = _RATE) -> Workload:
    model = functools.partial(of_keras, title.replace("-", ""))
    return _of_images(name, f"{title}, {size}²", 16, model, size, images, rate)


_FLOAT32 = (
    _applied("mobilenet", "MobileNetV2", 96),
    _applied("efficientnet", "EfficientNetB0", 96),
    _applied("resnet50", "ResNet-50", 64, _RATE_OF_DEEP),
    _applied("densenet", "DenseNet-121", 64, _RATE_OF_DEEP),
    _of_images("unet", "U-Net, 64²", 8, unet, 64, masks),
    _of_images("dcgan", "DCGAN's layers, 32²", 64, strided, 32, masks),
    Workload(
        *("gan", "DCGAN, 28²", 64, 4, noise, None, generator, None, *_ADAM),
        **{"binary": True, "discriminator": discriminator},
    ),
    Workload("gpt", "small GPT", 8, 4, tokens, None, gpt, None, *_ADAM, **_OF_ROWS),
    Workload("lstm", "LSTM", 64, 4, reviews, None, lstm, None, *_ADAM, **_OF_ROWS),
    Workload("dlrm", "DLRM", 1024, 8, clicks, None, dlrm, None, *_ADAM, binary=True, **_OF_ROWS),
)


# Its last layers normalize over 64 values: inputs that differ by 1e-5 change the loss of the first
# epoch from 2.88 to 2.99, without any other change (AMD EPYC, seed 0).
_OF_SIXTEEN_BITS = {"resnet50": 5e-2}


def _in_sixteen_bits(workload: Workload) -> Workload:
    return dataclasses.replace(
        workload,
        name=f"{workload.name}16",
        precision="mixed_bfloat16",
        tolerance=_OF_SIXTEEN_BITS.get(workload.name, 2e-2),
    )


MODELS = {workload.name: workload for one in _FLOAT32 for workload in (one, _in_sixteen_bits(one))}
