"""Workers whose state drifts apart are told which variable differs, and on which worker."""

import pytest

import replicax as rx

from . import drift

pytestmark = pytest.mark.timeout(500)

NAMES = {
    "learning_rate": "learning_rate",
    "weights": "dense/kernel",
    "swapped_weights": "dense/kernel",
    "slot": "momentum",
    "counter": "iteration",
    "seed": "seed_generator_state",
}
MOMENTS = [
    *(f"{change.__name__} in an epoch" for change in drift.CHANGES),
    "learning_rate at the end of an epoch",
    "weights at the end of the last epoch",
    "weights in a checkpoint",
    "learning_rate in a loop",
]


@pytest.fixture(scope="module")
def two_workers():
    return rx.launch.run(drift.in_worker, 2, args=(0,), devices_per_worker=2, timeout=450)


@pytest.mark.parametrize("moment", MOMENTS)
def test_the_variable_is_named_on_both_workers(two_workers, moment):
    (differing, text), other = (found[moment] for found, _ in two_workers)
    assert any(NAMES[moment.partition(" ")[0]] in name for name in differing)
    assert (differing, text) == tuple(other)


def test_both_values_of_a_learning_rate_are_told_first(two_workers):
    differing, text = two_workers[0][0]["learning_rate in an epoch"]
    assert "learning_rate" in differing[0]
    assert "0.25" in text
    assert "0.001" in text


def test_workers_that_stay_equal_are_not_stopped(two_workers):
    assert [equal for _, equal in two_workers] == [{one.__name__: [] for one in drift.EQUAL}] * 2
