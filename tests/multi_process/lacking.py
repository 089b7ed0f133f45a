"""A worker without kernels for CPUs trains with one that has them."""

from __future__ import annotations

import json
import logging
import os

import keras
import numpy as np

import replicax as rx
from replicax._cpu import kernels


def _not_built():
    raise kernels.NoKernelsError("they were not built")


def in_worker(without):
    """The weights of a model whose layers and optimizer have kernels, and what was said."""
    if json.loads(os.environ["TF_CONFIG"])["task"]["index"] in without:
        kernels.load = _not_built

    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("replicax").addHandler(handler)
    strategy = rx.MultiWorkerMirroredStrategy()
    with strategy.scope():
        keras.utils.set_random_seed(0)
        words = keras.Input((16,), dtype="int32")
        x = keras.layers.Embedding(2000, 64)(words)
        x = keras.layers.MultiHeadAttention(4, 16)(x, x)
        x = keras.layers.Dense(64, activation="relu")(x)
        model = keras.Model(words, keras.layers.Dense(1)(x))
        model.compile(keras.optimizers.Adam(1e-3), "mse")
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 2000, (256, 16)), rng.normal(size=(256, 16, 1)).astype("float32")
    model.fit(x, y, batch_size=128, epochs=2, verbose=0)
    return model.get_weights(), [text for text in said if "parts of the tuning" in text]
