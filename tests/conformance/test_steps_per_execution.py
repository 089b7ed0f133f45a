"""Several steps as one program: what they come to, under every strategy of devices.

With parameter servers: tests/ps/test_fit.py.
"""

from __future__ import annotations

import keras
import numpy as np
import pytest

import replicax as rx

from fitting import ROWS, TARGETS, dense_net, made, weight_difference

TWO = ["CPU:0", "CPU:1"]


WAYS = {
    "one device": lambda: rx.OneDeviceStrategy("CPU:1"),
    "mirrored": lambda: rx.MirroredStrategy(TWO),
    "mirrored, slots divided": lambda: rx.MirroredStrategy(TWO, shard_optimizer=True),
    "mirrored, all divided": lambda: rx.MirroredStrategy(TWO, shard_parameters=True),
    "mirrored, compressed": lambda: rx.MirroredStrategy(TWO, compression="int8"),
    "central storage": lambda: rx.CentralStorageStrategy(TWO),
    "model parallel": lambda: rx.ModelParallelStrategy(model_parallel=2, devices=TWO),
    "workers": rx.MultiWorkerMirroredStrategy,
    "steps alone": lambda: rx.MultiWorkerMirroredStrategy(sync_every=2),
}


def trained(strategy, steps):
    """Weights and losses after two epochs of seven batches, the last of three rows."""
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    how = {"optimizer": optimizer, "steps_per_execution": steps, "metrics": ["mae"]}
    model = made(strategy, lambda: dense_net(**how))
    fit = model.fit(ROWS, TARGETS, batch_size=4, epochs=2, shuffle=False, verbose=0)
    return model.get_weights(), fit.history


@pytest.mark.parametrize("way", WAYS)
def test_several_steps_at_once_come_to_what_one_by_one_comes_to(way):
    strategy = WAYS[way]()
    weights, history = trained(strategy, 1)
    found, losses = trained(strategy, 4)
    # Rounding: XLA compiles a loop of steps by itself.
    assert weight_difference(found, weights) <= 1e-6
    for name, values in history.items():
        np.testing.assert_allclose(losses[name], values, rtol=1e-6)
