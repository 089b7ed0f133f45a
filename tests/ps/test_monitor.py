"""What `fit` says of workers and servers, which nobody is asked for."""

import json

import keras
import numpy as np
import pytest

import replicax as rx

from helpers import wait_until

X = np.ones((192, 4), "float32")


@pytest.fixture
def strategy(started):
    return started(servers=1, workers=2, max_staleness=0)


def test_workers_and_servers_are_in_the_logs(strategy, tmp_path, capsys):
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    monitor = rx.callbacks.ReplicaMonitor(tmp_path, tensorboard=False)
    history = model.fit(X, X[:, :1], batch_size=8, epochs=2, verbose=2, callbacks=[monitor]).history
    found = strategy.coordination.members()
    assert sum(count for count, _ in found.closures.values()) == 48
    assert found.depths[0] == 48
    wait_until(lambda: strategy.coordination.members().staleness == {0: 48})
    assert len(history["queue_depth"]) == len(history["examples_per_second"]) == 2
    assert " · queue " in capsys.readouterr().out
    lines = [json.loads(line) for line in (tmp_path / "monitor.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [24, 48]


def test_data_that_workers_read_has_no_known_rows(strategy, capsys):
    def dataset_fn(context):
        return rx.data.Dataset.from_tensor_slices((X, X[:, :1])).repeat().batch(8)

    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    creator = rx.DatasetCreator(dataset_fn)
    model.fit(creator, steps_per_epoch=4, verbose=2)
    said = capsys.readouterr().out
    assert " · queue " in said
    assert "ex/s" not in said
