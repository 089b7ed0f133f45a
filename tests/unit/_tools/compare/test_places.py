"""Where variables and rows are found, on virtual devices and on parameter servers."""

from __future__ import annotations

import jax
import keras
import numpy as np
import pytest

import replicax as rx
from replicax._tools.compare.result import Place
from replicax._tools.compare.training import way as way_of


def trained(strategy):
    """A model of 2·3 + 3 numbers in 2 variables, and an optimizer with 2 numbers of its own."""
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
    model.fit(np.ones((4, 2), "float32"), np.ones((4, 3), "float32"), batch_size=2, verbose=0)
    return model


# 9 numbers of the model, the learning rate and the count of steps, of 4 bytes each
VARIABLES, BYTES = 4, 44


@pytest.mark.parametrize(
    ("name", "holders"), [("mirrored", 3), ("central_storage", 1), ("one_device", 1)]
)
def test_places_of_three_devices(name, holders):
    way = way_of(name, jax.local_devices()[:3], None)
    strategy = way.make()
    # 10 rows for 3 replicas: 4, 4 and what is left
    rows = [(0, 10)] if name == "one_device" else [(0, 4), (4, 8), (8, 10)]
    held = [(VARIABLES, BYTES)] * holders + [(0, 0)] * 3
    assert way.find_places(strategy, trained(strategy), 10) == tuple(
        Place(f"CPU:{i}", *held[i], computes=True, rows=rows[i]) for i in range(len(rows))
    )


def test_places_of_servers():
    strategy = rx.ParameterServerStrategy(engine="threads", num_workers=2, num_ps=2)
    try:
        way = way_of("parameter_server", [], 2)
        found = way.find_places(strategy, trained(strategy), 10)
    finally:
        strategy.close()
    # The matrix is on one server, the vector on the other, the two numbers on both.
    assert found == (
        Place("server 0", 3, 24 + 8, computes=False),
        Place("server 1", 3, 12 + 8, computes=False),
        Place("worker 0", 0, 0, computes=True),
        Place("worker 1", 0, 0, computes=True),
    )
