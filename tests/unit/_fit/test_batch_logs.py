"""Logs of batches: numbers when they are read, and not before."""

from __future__ import annotations

import json

import keras
import numpy as np
import pytest

from replicax._fit.callback_list import BatchLogs


class Computed:
    """A number that counts how often it is asked for."""

    def __init__(self, value):
        self.value, self.reads = value, 0

    def __float__(self):
        self.reads += 1
        return self.value


@pytest.mark.parametrize(
    "look",
    [
        dict,
        lambda logs: {**logs},
        lambda logs: dict(logs.items()),
        lambda logs: {name: logs[name] for name in logs},
        lambda logs: logs.copy(),
        lambda logs: {} | logs,
        lambda logs: json.loads(json.dumps(logs)),
        lambda logs: {"accuracy": logs.get("accuracy"), "loss": logs.pop("loss")},
        lambda logs: dict(zip(logs.keys(), logs.values(), strict=True)),
    ],
)
def test_who_looks_finds_numbers(look):
    loss = Computed(0.5)
    logs = BatchLogs({"loss": loss, "compiled": {"accuracy": Computed(0.25)}})
    assert (len(logs), "loss" in logs, list(logs.keys())) == (2, True, ["accuracy", "loss"])
    assert loss.reads == 0
    assert look(logs) == {"accuracy": 0.25, "loss": 0.5}
    assert loss.reads == 1


def test_logs_can_be_added_to():
    logs = BatchLogs({"loss": Computed(0.5)})
    logs["lr"] = 1.0
    assert logs == {"loss": 0.5, "lr": 1.0}
    assert not BatchLogs(None)


class Reader(keras.callbacks.Callback):
    """Reads the loss of every fourth batch."""

    def __init__(self):
        super().__init__()
        self.logs, self.losses = [], []

    def on_train_batch_end(self, batch, logs=None):
        self.logs.append(logs)
        if batch % 4 == 3:
            self.losses.append(logs["loss"])


def fitted(strategy, **kwargs):
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="ones")]
        )
        model.compile("sgd", "mse")
        model.optimizer.learning_rate = 0.0  # so that the loss of a row is the square of its target
    targets = np.arange(8, dtype="float32")[:, None]
    x = np.zeros((8, 1), "float32")
    return model.fit(x, targets, batch_size=1, shuffle=False, **kwargs)


def test_a_callback_gets_the_loss_of_its_batch(mirrored):
    reader = Reader()
    history = fitted(mirrored, verbose=0, callbacks=[reader])
    # Means of the squares 0, 1, 4, 9 and 0 … 49.
    assert reader.losses == [3.5, 17.5]
    assert history.history["loss"] == [17.5]
    assert [float(logs["loss"]) for logs in reader.logs[:2]] == [0.0, 0.5]  # also later


@pytest.mark.parametrize("with_reader", [False, True])
def test_the_progress_bar_ends_with_the_loss_of_the_epoch(mirrored, capsys, with_reader):
    fitted(mirrored, verbose=1, callbacks=[Reader()] if with_reader else [])
    last = capsys.readouterr().out.splitlines()[-1]
    assert "8/8" in last
    assert "loss: 17.5000" in last


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
def test_the_bar_of_an_epoch_of_unknown_length_counts_batches(mirrored, capsys):
    with mirrored.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    batches = ((np.zeros((2, 1), "float32"),) * 2 for _ in range(5))
    model.fit(batches, verbose=1, shuffle=False)
    lines = [line for line in capsys.readouterr().out.splitlines() if "loss" in line]
    assert "5/5" in lines[-1]


def test_a_callback_that_comes_in_the_middle_of_an_epoch_hears_of_its_batches(mirrored):
    heard = []

    class Late(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            heard.append(batch)

    class Adds(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            if batch == 2:
                callbacks.callbacks.append(Late())

    with mirrored.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    callbacks = keras.callbacks.CallbackList([Adds()], add_history=True, model=model)
    model.fit(np.zeros((10, 1)), np.zeros(10), batch_size=2, verbose=0, callbacks=callbacks)
    assert heard == [2, 3, 4]
