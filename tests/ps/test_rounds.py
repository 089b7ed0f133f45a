"""`dense="mirrored"`: dense variables by the mean of all workers, as an all-reduce gives it."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import replicax as rx
from replicax._core.errors import UsageError
from replicax._ps.server.rounds import RoundGate, Sums


def made_model():
    keras.utils.set_random_seed(1)
    layers = [keras.Input((4,)), keras.layers.Dense(3, activation="tanh"), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile(keras.optimizers.Adam(0.01), "mse")
    return model


def test_two_workers_train_as_one_with_twice_the_batch(started):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(48, 4)).astype("float32"), rng.normal(size=(48, 1)).astype("float32")
    strategy = started(workers=2, dense="mirrored")
    with strategy.scope():
        model = made_model()
    local = made_model()
    how = {"epochs": 2, "shuffle": False, "verbose": 0}
    ours = model.fit(x, y, batch_size=8, **how).history["loss"]
    np.testing.assert_allclose(ours, local.fit(x, y, batch_size=16, **how).history["loss"], 1e-5)
    for mine, theirs in zip(model.weights, local.weights, strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs.numpy(), rtol=1e-5, atol=1e-6)
    assert int(model.optimizer.iterations.value) == int(local.optimizer.iterations.value) == 6


def test_what_is_there_is_applied_when_somebody_waits_for_it(started):
    strategy = started(workers=2, dense="mirrored")
    with strategy.scope():
        v = keras.Variable(1.0)
        optimizer = keras.optimizers.SGD(0.5)
    coordinator = rx.coordinator.ClusterCoordinator(strategy)

    @rx.function
    def step(gradient):
        optimizer.apply([gradient], [v])

    for gradient in (1.0, 3.0, 2.0):  # a round of two, their mean 2, and one that is not full
        coordinator.schedule(step, args=(np.float32(gradient),))
    coordinator.join()
    assert float(v.value) == 1.0 - 0.5 * 2.0 - 0.5 * 2.0


def test_a_gate_of_rounds_waits_for_the_round_to_end():
    ended = []
    gate = RoundGate(lambda: 2, lambda: ended.append(True))
    assert gate.admit(0) and gate.admit(1)
    gate.finish(1)
    assert not ended
    gate.flush()  # one still runs: the round ends with it
    assert not ended
    gate.finish(0)
    assert len(ended) == 1
    gate.flush()  # nothing has begun
    gate.finish(7)  # nobody has let it in
    assert len(ended) == 1
    gate.close()
    assert not gate.admit(2)


def test_sums_are_divided_by_those_who_came():
    sums = Sums()
    sums.add((0, 1), [np.array([1.0, 2.0], "float32")])
    sums.add((0, 1), [np.array([3.0, 6.0], "float32")])
    sums.add((0, 2), [np.array([5.0], "float32")])
    means = sums.means()
    assert {key: [m.tolist() for m in found] for key, found in means.items()} == {
        (0, 1): [[2.0, 4.0]],
        (0, 2): [[5.0]],
    }
    assert sums.means() == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dense": "workers"}, "Dense variables are trained as updates come, or in rounds"),
        ({"dense": "mirrored", "max_staleness": 1}, "Rounds have no staleness to be bounded"),
        ({"staleness_scaling": 3}, "`staleness_scaling` says how much a late gradient counts"),
        ({"workers": 0}, "A cluster has at least one worker and one parameter server"),
    ],
)
def test_options_that_mean_nothing(started, options, message):
    with pytest.raises(UsageError, match=message):
        started(**options)


def test_an_engine_that_is_not_there():
    with pytest.raises(UsageError, match="The engine of a parameter-server strategy is"):
        rx.ParameterServerStrategy(engine="gloo")
    with pytest.raises(UsageError, match="Ray starts the members of a Ray cluster"):
        rx.ParameterServerStrategy(engine="processes", address="auto")
