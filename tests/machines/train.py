"""A program for machines: `fit` by several workers, whose weights go to `weights-N.npz`."""

import os
import sys
import time
from pathlib import Path

import keras
import numpy as np

import replicax as rx

ROWS = 96
RESULTS = os.environ.get("RESULTS", ".")


def data():
    sample = np.random.default_rng(0)
    x = sample.normal(size=(ROWS, 16)).astype("float32")
    return x, x[:, :1] * 2 - 1


def model(rate=0.05):
    keras.utils.set_random_seed(3)
    layers = [keras.Input((16,)), keras.layers.Dense(64, "tanh"), keras.layers.Dense(1)]
    made = keras.Sequential(layers)
    made.compile(keras.optimizers.SGD(rate, momentum=0.9), "mse")
    return made


class Slow(keras.callbacks.Callback):
    """Steps that take a while, and say so in a file, so that something can happen in between."""

    def __init__(self, seconds):
        super().__init__()
        self._seconds = seconds

    def on_train_batch_end(self, batch, logs=None):
        Path(RESULTS, f"step-{os.uname().nodename}").touch()
        time.sleep(self._seconds)


def main(epochs=2, seconds=0.0):
    limit = float(os.environ.get("TIMEOUT", "600"))
    options = rx.experimental.CommunicationOptions(timeout_seconds=limit)
    strategy = rx.MultiWorkerMirroredStrategy(communication_options=options)
    with strategy.scope():
        net = model()
    x, y = data()
    slow = [Slow(seconds)] if seconds else []
    history = net.fit(x, y, batch_size=16, epochs=epochs, verbose=2, callbacks=slow).history
    task = strategy.cluster_resolver.task_id
    np.savez(Path(RESULTS, f"weights-{task}.npz"), *net.get_weights())
    print(f"{os.uname().nodename} has trained: loss {history['loss'][-1]:.4f}")


if __name__ == "__main__":
    main(*(float(word) if "." in word else int(word) for word in sys.argv[1:]))
