"""Models for the checks, and the strategies that one GPU can have."""

import functools
from itertools import product

import jax
import keras
import numpy as np

import replicax as rx

from fitting import made

GPUS = [device for device in jax.local_devices() if device.platform == "gpu"]
DEVICE = "GPU:0" if GPUS else "CPU:1"
ROWS, BATCH = 37, 8  # the last batch has 5 rows
SAMPLE = np.random.default_rng(2)
LABELS = SAMPLE.integers(0, 4, ROWS)
PICTURES = SAMPLE.normal(size=(ROWS, 12, 12, 3)).astype("float32")
WORDS = SAMPLE.integers(0, 50, (ROWS, 10)).astype("int32")
NUMBERS = SAMPLE.normal(size=(ROWS, 20)).astype("float32")

layers = keras.layers


def mlp():
    x = inputs = keras.Input((20,))
    for _ in range(2):
        x = layers.Dense(64, activation="relu")(x)
    return keras.Model(inputs, layers.Dense(4)(layers.Dropout(0.2, seed=1)(x)))


def convolutions():
    """Channels last, with strides, groups and normalization."""
    x = inputs = keras.Input((12, 12, 3))
    x = layers.Conv2D(16, 3, padding="same", use_bias=False)(x)
    x = layers.ReLU()(layers.BatchNormalization()(x))
    x = layers.DepthwiseConv2D(3, strides=2, padding="same", activation="silu")(x)
    x = layers.Conv2D(16, 3, groups=2, padding="same")(layers.MaxPooling2D()(x))
    x = layers.Conv2DTranspose(8, 4, strides=2, padding="same")(x)
    return keras.Model(inputs, layers.Dense(4)(layers.Flatten()(layers.AveragePooling2D(2)(x))))


def channels_first():
    x = inputs = keras.Input((12, 12, 3))
    x = layers.Permute((3, 1, 2))(x)
    x = layers.Conv2D(16, 3, data_format="channels_first", activation="relu")(x)
    x = layers.BatchNormalization(axis=1)(x)
    x = layers.MaxPooling2D(data_format="channels_first")(x)
    return keras.Model(inputs, layers.Dense(4)(layers.Flatten()(x)))


def recurrent():
    x = inputs = keras.Input((10,), dtype="int32")
    x = layers.LSTM(16, return_sequences=True)(layers.Embedding(50, 8)(x))
    return keras.Model(inputs, layers.Dense(4)(layers.GRU(16)(x)))


def attention():
    x = inputs = keras.Input((10,), dtype="int32")
    x = layers.Embedding(50, 32)(x)
    y = layers.MultiHeadAttention(4, 8)(x, x, use_causal_mask=True)
    x = layers.LayerNormalization()(x + y)
    x = x + layers.Dense(32)(layers.Dense(64, activation="gelu")(x))
    return keras.Model(inputs, layers.Dense(4)(layers.GlobalAveragePooling1D()(x)))


MODELS = {
    "mlp": (mlp, NUMBERS),
    "convolutions": (convolutions, PICTURES),
    "channels_first": (channels_first, PICTURES),
    "recurrent": (recurrent, WORDS),
    "attention": (attention, WORDS),
}


def compiled(name, **how):
    """A model of the name with weights that are always the same."""
    keras.utils.set_random_seed(5)
    model = MODELS[name][0]()
    how.setdefault("optimizer", keras.optimizers.SGD(0.02, momentum=0.9))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(loss=loss, metrics=["accuracy"], **how)
    return model


def trained(strategy, name, **how):
    """The weights and all that `fit`, `evaluate` and `predict` say."""
    model, inputs = made(strategy, functools.partial(compiled, name, **how)), MODELS[name][1]
    history = model.fit(inputs, LABELS, batch_size=BATCH, epochs=2, verbose=0, shuffle=False)
    told = {
        "history": history.history,
        "evaluate": model.evaluate(inputs, LABELS, batch_size=BATCH, verbose=0),
        "predict": model.predict(inputs, batch_size=BATCH, verbose=0),
    }
    return model.get_weights(), told


STRATEGIES = {
    "default": rx.get_strategy,
    "one_device": lambda: rx.OneDeviceStrategy(DEVICE),
    "mirrored": lambda: rx.MirroredStrategy(GPUS or ["CPU:1", "CPU:2"]),
    "central_storage": lambda: rx.CentralStorageStrategy(GPUS or ["CPU:1", "CPU:2"], "CPU:0"),
    "multi_worker": lambda: rx.MultiWorkerMirroredStrategy(),
}
# Without a GPU, each model and each strategy once shows that all of them run.
PAIRS = list(product(MODELS, STRATEGIES) if GPUS else zip(MODELS, STRATEGIES, strict=True))
