"""The study of click-through: that what it counts by is right."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

BENCHMARK = Path(__file__).resolve().parents[3] / "benchmarks" / "click_through.py"


@pytest.fixture(scope="module")
def study():
    spec = importlib.util.spec_from_file_location("click_through", BENCHMARK)
    module = importlib.util.module_from_spec(spec)
    sys.modules["click_through"] = module  # where its dataclasses look their annotations up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["click_through"]


def test_auc_is_the_part_of_the_pairs_in_the_right_order(study):
    labels, scores = np.array([1, 1, 0, 0]), np.array([0.9, 0.4, 0.4, 0.1])
    # Pairs: 0.9 over both, 0.4 a tie with one and over the other: 3.5 of 4.
    assert study.auc(labels, scores) == 3.5 / 4
    random = np.random.default_rng(0)
    labels, scores = random.integers(0, 2, 200), random.integers(0, 20, 200)
    pairs = scores[labels == 1][:, None] - scores[labels == 0][None, :]
    expected = np.mean((pairs > 0) + 0.5 * (pairs == 0))
    assert abs(study.auc(labels, scores) - expected) < 1e-12


def test_examples_are_the_same_for_the_same_key(study):
    clicks = study.Clicks((50, 20))
    one, again, other = clicks.draw(40, 1, 2), clicks.draw(40, 1, 2), clicks.draw(40, 1, 3)
    for mine, theirs in zip(one, again, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert (one[0] != other[0]).any()
    ids = clicks.draw(1000, 0)[0]
    assert ids[:, 0].max() < 50 <= ids[:, 1].min() <= ids[:, 1].max() < 70
    # Zipf: the first id is the most frequent one.
    assert np.bincount(ids[:, 0]).argmax() == 0


def test_the_time_to_a_target_lies_between_two_looks(study):
    curve = study.Curve([0.0, 2.0, 4.0], [0.5, 0.6, 0.8], 1000)
    assert curve.reached(0.7) == pytest.approx(3.0)
    assert curve.reached(0.5) == 0.0
    assert curve.reached(0.9) is None
