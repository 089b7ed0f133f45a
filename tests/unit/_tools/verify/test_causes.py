"""Causes and tolerances from records that are written by hand."""

import numpy as np
import pytest

from replicax._tools.verify.causes import Evidence, cause_of
from replicax._tools.verify.compare import differences, epsilon, tolerance
from replicax._tools.verify.record import (
    GRADIENT,
    METRIC,
    STATISTIC,
    WEIGHT,
    Run,
    StepInput,
    StepRecord,
    Value,
)

KEYS = {WEIGHT: ("weight kernel", 0), GRADIENT: ("gradient kernel", 0)}


def run(replicas, *, weight=(3.0, 4.0), gradient=(0.6, 0.8), spread=0.0, rows="ab", **more):
    """A run of one step: a weight that begins with zeros, and its gradient."""
    values = {
        KEYS[WEIGHT]: Value("kernel", WEIGHT, np.array(weight, "float32"), spread),
        KEYS[GRADIENT]: Value("kernel", GRADIENT, np.array(gradient, "float32")),
    }
    before = {KEYS[WEIGHT]: Value("kernel", WEIGHT, np.zeros(2, "float32"))}
    pieces = tuple(tuple(row.encode() for row in piece) for piece in rows.split("|"))
    given = (StepInput(pieces, replicas > 1),)
    seen = StepRecord("run", given, more.pop("results", {}), values | more.pop("values", {}))
    return Run("mirrored", replicas, before, [seen], **more)


def cause(reference, other):
    found = differences(reference, other, 2.0**-24)
    return cause_of(Evidence(reference, other, found)).name if found or other.error else None


def test_equal_runs_have_no_cause_and_rounding_is_no_difference():
    assert cause(run(1), run(2, rows="a|b")) is None
    assert cause(run(1), run(2, rows="b|a", weight=(3.0000002, 4.0))) is None


@pytest.mark.parametrize(
    ("other", "name"),
    [
        (run(2, rows="a|b", spread=0.5), "missing all-reduce"),
        (run(2, rows="a|b", gradient=(1.2, 1.6), weight=(6, 8)), "loss not divided"),
        (run(2, rows="a|b", gradient=(0.3, 0.4), weight=(1.5, 2)), "loss scaled twice"),
        (run(2, rows="a|b", gradient=(1.8, 2.4), weight=(9, 12)), "loss scaled"),
        (run(2, rows="a|b", gradient=(0.8, 0.6)), "order-dependent operation"),
        (run(2, rows="a|a"), "wrong shard"),
        (run(2, rows="ab|ab"), "wrong shard"),
        (run(2, rows="ab|cd"), "batch too large"),
        (run(2, rows="a|"), "rows dropped"),
        (run(2, rows="c|d"), "different data"),
        (run(2, rows="a|b", error=ZeroDivisionError("x")), "it fails"),
        (run(2, rows="a|b", weight=(6, 8), shared_draws={"dropout"}), "same random numbers"),
    ],
)
def test_a_cause_follows_from_what_differs(other, name):
    assert str(cause(run(1), other)).startswith(name)


def test_a_run_with_more_steps_has_other_batches():
    longer = run(2, rows="a|b")
    longer.steps *= 2
    assert cause(run(1), longer) == "different data"


def test_a_value_of_each_replica_may_be_a_part_of_a_sum_or_a_mean():
    one = run(1, results={"loss": (np.float32(6.0),)})
    for parts, expected in (((2.0, 4.0), None), ((5.0, 7.0), None), ((2.0, 3.0), "metric not")):
        other = run(2, rows="a|b", results={"loss": tuple(map(np.float32, parts))})
        assert str(cause(one, other)).startswith(str(expected))


@pytest.mark.parametrize(
    ("reported", "expected"),
    [(3.0, "mean of sums"), (12.0, "sum of means"), (4.0, "metric not merged")],
)
def test_a_loss_that_is_reduced_in_the_wrong_way(reported, expected):
    one = run(1, results={"loss": (np.float32(6.0),)})
    assert cause(one, run(2, rows="a|b", results={"loss": (np.float32(reported),)})) == expected


def with_value(kind, number, replicas, rows):
    value = Value("m", kind, np.array([number], "float32"))
    return run(replicas, rows=rows, values={(f"{kind} m", 0): value})


@pytest.mark.parametrize(
    ("kind", "name"), [(METRIC, "metric not merged"), (STATISTIC, "per-replica statistic")]
)
def test_a_metric_and_a_statistic_that_differ_alone(kind, name):
    ours, theirs = with_value(kind, 2.0, 1, "ab"), with_value(kind, 1.0, 2, "a|b")
    assert cause(ours, theirs) == name
    assert cause(ours, with_value(kind, 2.0, 2, "a|b")) is None


def test_a_number_that_is_not_finite_differs_unless_it_is_so_on_one_device_too():
    endless = (np.inf, 1.0)
    assert cause(run(1), run(2, rows="a|b", weight=endless)) is not None
    assert cause(run(1, weight=endless), run(2, rows="a|b", weight=endless)) is None


def test_a_weight_whose_gradient_is_a_rounding_error_is_not_compared():
    big = Value("big", GRADIENT, np.array([1e3, 1e3], "float32"))
    more = {"values": {("gradient big", 0): big}, "gradient": (1e-7, 1e-7)}
    assert cause(run(1, **more), run(2, rows="a|b", weight=(4, 3), **more)) is None


def test_tolerances_grow_with_rows_and_steps_and_with_coarser_numbers():
    assert epsilon(["float32", "bfloat16"]) == 2.0**-8
    assert tolerance(2.0**-24, 4, 1) == 32 * 2.0**-24
    assert tolerance(2.0**-24, 4, 3) == 96 * 2.0**-24
    assert tolerance(2.0**-8, 10_000, 1) == 0.25
