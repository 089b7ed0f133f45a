"""The settings of a comparison, and the arithmetic on measurements, worked out by hand."""

import math
import shlex
from dataclasses import replace

import numpy as np
import pytest

import replicax as rx
from replicax import report
from replicax._tools.compare.result import Interval, ScalePoint, weight_difference
from replicax._tools.compare.settings import Settings
from replicax.launch import _cli

NAMES = ["a", "b"]


@pytest.mark.parametrize(
    ("weights", "reference", "expected"),
    [
        # Relative to the largest weight of its array: 0.2 / 4 before 0.01 / 0.5.
        ([[1.2, -4.0], [[0.51]]], [[1.0, -4.0], [[0.5]]], (0.05, "a")),
        ([[1.0], [0.0, 0.0]], [[1.0], [0.0, 0.0]], (0.0, "a")),
        ([[0.0], [1 + 2**-23]], [[0.0], [1.0]], (2.0**-23, "b")),  # in float64
        ([[1e-9]], [[0.0]], (math.inf, "a")),
        ([[math.inf]], [[math.inf]], (math.nan, "a")),
        ([[]], [[]], (0.0, "a")),
    ],
)
def test_weight_difference(weights, reference, expected):
    arrays = [[np.array(one, np.float32) for one in side] for side in (weights, reference)]
    difference, name = weight_difference(*arrays, NAMES[: len(weights)])
    assert (difference, name) == (pytest.approx(expected[0], nan_ok=True), expected[1])


@pytest.mark.parametrize("broken", [np.array([np.nan, 1.0]), np.array([np.nan, 0.0])])
@pytest.mark.parametrize("reference", [np.array([1.0, 1.0]), np.zeros(2)])
def test_weight_difference_sees_nan_beside_any_other_difference(broken, reference):
    weights = [broken, np.array([100.0])]
    difference, name = weight_difference(weights, [reference, np.array([1.0])], NAMES)
    assert math.isnan(difference)
    assert name == "a"


def test_throughput_is_the_median_over_rounds(sample):
    # 1000 examples in 2, 1 and 4 s: 500, 1000 and 250 per second
    comparison = sample(one_device=(2.0, 1.0, 4.0), examples_per_round=1000)
    assert comparison.examples_per_second("one_device") == Interval(500, 250, 1000)


def test_speed_ratio_pairs_the_rounds(sample):
    # 2/4, 1/1 and 4/2. The ratio of the medians would be 2/2 as well, but with no spread.
    comparison = sample(one_device=(2.0, 1.0, 4.0), mirrored=(4.0, 1.0, 2.0))
    assert comparison.speed_ratio("mirrored") == Interval(1.0, 0.5, 2.0)


@pytest.mark.parametrize(
    ("difference", "deviates"),
    [(0.0, False), (1e-4, False), (1.01e-4, True), (math.inf, True), (math.nan, True)],
)
def test_deviating_strategies(sample, difference, deviates):
    comparison = sample(difference=difference)
    assert [m.strategy for m in comparison.deviating] == ["mirrored"] * deviates


@pytest.mark.parametrize("name", ["replicas", "workers", "epochs", "repeats", "examples"])
def test_settings_refuse_counts_below_one(name):
    with pytest.raises(rx.errors.UsageError, match=f"`{name}` must be at least 1, got "):
        Settings(**{name: 0})


def test_speed_by_replicas_has_one_device_some_and_all(sample):
    # one_device: 1 s twice; mirrored on four devices 2 s and 4 s: 0.5 and 0.25
    assert replace(sample(), scaling=(ScalePoint(4, (2.0, 4.0)),)).speed_by_replicas() == {
        1: Interval(1, 1, 1),
        2: Interval(0.65, 0.5, 0.8),
        4: Interval(0.375, 0.25, 0.5),
    }


def test_speed_by_replicas_needs_several(sample):
    comparison = sample()
    assert replace(comparison, measurements=comparison.measurements[:1]).speed_by_replicas() == {}


def test_the_public_names_are_loaded_on_first_use():
    assert [callable(getattr(report, name)) for name in dir(report)] == [True] * 9
    with pytest.raises(AttributeError, match="has no"):
        report.compere  # noqa: B018


def test_workers_add_their_strategies():
    settings = Settings(strategies=("mirrored",), workers=3)
    names = ("one_device", "mirrored", "multi_worker", "parameter_server")
    assert (settings.strategies, settings.workers) == (names, 3)


def test_a_strategy_of_workers_that_is_named_comes_alone_with_two_of_them():
    settings = Settings(strategies=("one_device", "multi_worker"))
    assert (settings.strategies, settings.workers) == (("one_device", "multi_worker"), 2)


@pytest.mark.parametrize(
    "settings",
    [
        Settings(),
        Settings(model="mlp", workers=2, replicas=4, examples=100, seed=7),
        Settings(dataset="cifar10", model="resnet20", repeats=1),
    ],
)
def test_the_command_gives_the_same_settings(settings):
    program, *arguments = shlex.split(settings.command())
    request = vars(_cli.build_parser().parse_args(arguments))
    del request["command"], request["output"], request["open"]
    assert program == "replicax"
    assert Settings(**request) == settings
