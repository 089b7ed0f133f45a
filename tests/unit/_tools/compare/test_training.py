"""How long a timed round is, what the first training sees, and where variables and rows are found.

The whole is in test_compare.py."""

import contextlib
from types import SimpleNamespace

import jax
import keras
import numpy as np
import pytest

from replicax._tools.compare import training
from replicax._tools.compare.subjects import load_data
from replicax._tools.compare.training import strategy_maker
from replicax._tools.progress import Listener
from replicax.report import Settings


def planned(*, one_device, other=0.0, rows, batch_size=10):
    """The rows and epochs of a round for strategies with these seconds per step."""
    trained = [
        SimpleNamespace(name="one_device", step_seconds=one_device),
        SimpleNamespace(name="other", step_seconds=other),
    ]
    round_ = training.plan_round(
        trained,  # type: ignore[arg-type]
        batch_size=batch_size,
        rows=rows,
    )
    return round_.rows, round_.epochs


@pytest.mark.parametrize(
    ("steps", "rows", "expected"),
    [
        # A second of one device: 100 steps; an epoch of 95 rows is 10 steps with the rest.
        ({"one_device": 0.01}, 95, (95, 10)),
        ({"one_device": 0.01, "other": 0.1}, 100, (100, 3)),  # nobody more than 3 s: 30 steps
        ({"one_device": 0.3}, 1000, (30, 1)),  # whole batches of a large data set
        ({"one_device": 60.0}, 1000, (10, 1)),  # at least a batch
        ({"one_device": 60.0}, 7, (7, 1)),  # no more rows than there are
        ({"one_device": 1e-6}, 10, (10, 50)),  # no more epochs than are needed
    ],
)
def test_how_long_a_round_is(steps, rows, expected):
    assert planned(**steps, rows=rows) == expected


@pytest.fixture(scope="module")
def trained_alone():
    settings = Settings(model="mlp", examples=40, epochs=2, batch_size=16)
    data = load_data(settings)
    initial = training.new_model(settings, data).get_weights()
    task = training.Task(settings, data, initial)
    maker = training.strategy_maker("one_device", jax.local_devices(), None)
    return task, training.train(maker, task, Listener(), contextlib.ExitStack())


def test_training_starts_from_the_given_weights_and_takes_the_batches_in_order(trained_alone):
    task, measured = trained_alone
    data, model = task.data, training.new_model(task.settings, task.data)
    model.set_weights(task.initial)
    for _ in range(2):
        for start in (0, 16, 32):
            stop = start + 16
            model.train_on_batch(data.train_inputs[start:stop], data.train_classes[start:stop])
    for found, expected in zip(measured.training.weights, model.get_weights(), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_timed_rounds_leave_the_measured_weights_alone(trained_alone):
    task, measured = trained_alone
    before = [weight.copy() for weight in measured.training.weights]
    seconds = training.time_round(measured, training.TimedRound(16, 2), task)
    assert seconds > 0
    assert all(map(np.array_equal, measured.training.weights, before))
    assert not np.array_equal(measured.model.get_weights()[0], before[0])


def trained(strategy):
    """A model of 2·3 + 3 numbers in 2 variables, and an optimizer with 2 numbers of its own."""
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
    model.fit(np.ones((4, 2), "float32"), np.ones((4, 3), "float32"), batch_size=2, verbose=0)
    return model


@pytest.mark.parametrize(
    ("name", "holding"), [("mirrored", 3), ("central_storage", 1), ("parameter_server", 0)]
)
def test_devices_of_replicas_and_of_variables(name, holding):
    maker = strategy_maker(name, jax.local_devices()[:3], 3)
    names = ("CPU:0", "CPU:1", "CPU:2")
    if name == "parameter_server":
        assert maker.devices(None, None) == (("worker 0", "worker 1", "worker 2"), ("server 0",))
    else:
        strategy = maker.make()
        assert maker.devices(strategy, trained(strategy)) == (names, names[:holding])
