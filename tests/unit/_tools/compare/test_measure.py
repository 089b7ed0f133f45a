"""How long a timed round is, and what the first training sees. The whole is in test_compare.py."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from replicax._tools.compare import training
from replicax._tools.compare.subjects import load_data
from replicax._tools.progress import Listener
from replicax.report import Settings


def planned(*, one_device, other=0.0, rows, batch_size=10):
    """The rows and epochs of a round for strategies with these seconds per step."""
    trials = [
        SimpleNamespace(name="one_device", step_seconds=one_device),
        SimpleNamespace(name="other", step_seconds=other),
    ]
    round_ = training.plan_round(
        trials,  # type: ignore[arg-type]
        settings=Settings(batch_size=batch_size),
        rows=rows,
        baseline="one_device",
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
def trial():
    settings = Settings(model="mlp", examples=40, epochs=2, batch_size=16)
    data = load_data(settings)
    initial = training.new_model(settings, data).get_weights()
    trial = training.train(
        training.way("one_device", jax.local_devices(), None),
        settings=settings,
        data=data,
        initial=initial,
        listener=Listener(),
        ends=contextlib.ExitStack(),
    )
    return settings, data, initial, trial


def test_training_starts_from_the_given_weights_and_takes_the_batches_in_order(trial):
    settings, data, initial, measured = trial
    model = training.new_model(settings, data)
    model.set_weights(initial)
    for _ in range(2):
        for start in (0, 16, 32):
            stop = start + 16
            model.train_on_batch(data.train_inputs[start:stop], data.train_classes[start:stop])
    for found, expected in zip(measured.training.weights, model.get_weights(), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_timed_rounds_leave_the_measured_weights_alone(trial):
    settings, data, _, measured = trial
    before = [weight.copy() for weight in measured.training.weights]
    seconds = training.time_round(measured, training.Round(16, 2), settings=settings, data=data)
    assert seconds > 0
    assert all(map(np.array_equal, measured.training.weights, before))
    assert not np.array_equal(measured.model.get_weights()[0], before[0])


def test_every_epoch_is_recorded(trial):
    epochs = trial[-1].training.epochs
    assert len(epochs) == 2
    assert epochs[1].loss < epochs[0].loss
    assert all(0 <= epoch.test_accuracy <= 1 for epoch in epochs)


def test_the_first_step_is_timed_from_the_making_of_the_strategy(trial):
    measured = trial[-1].training
    assert measured.first_step_seconds > measured.step_seconds > 0
