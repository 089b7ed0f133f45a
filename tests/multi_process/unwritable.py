"""A worker whose chief cannot write what a callback is to save."""

from __future__ import annotations

import keras
import numpy as np

import replicax as rx


class Steps(keras.callbacks.Callback):
    """Counts the steps of `fit`."""

    count = 0

    def on_train_batch_end(self, batch, logs=None):
        self.count += 1


def steps_of(path: str) -> tuple[int, str]:
    """Fit with a `ModelCheckpoint`; the number of steps, and the error."""
    with rx.MultiWorkerMirroredStrategy().scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    steps = Steps()
    x = np.ones((8, 2), "float32")
    callbacks = [steps, keras.callbacks.ModelCheckpoint(path)]
    try:
        model.fit(x, x[:, :1], batch_size=4, epochs=2, verbose=0, callbacks=callbacks)
    except Exception as error:
        return steps.count, f"{type(error).__name__}: {error}"
    return steps.count, ""
