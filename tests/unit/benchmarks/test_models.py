"""The table of real models: what it compares, and what it refuses to."""

from __future__ import annotations

import numpy as np
import pytest
from harness.measure import Measured
from harness.report import Row
from harness.workloads import MODELS
from models import table


def row(**sides):
    return Row(
        "gpt", "default", "fit", {side: measured(side, **told) for side, told in sides.items()}
    )


def measured(side, seconds, losses=(2.0, 1.5), error="", tolerance=2e-3):
    times = [seconds] * 3
    return Measured(
        side, losses=list(losses), wall=times, cpu=times, error=error, tolerance=tolerance
    )


def test_a_ratio_above_one_says_that_replicax_is_faster():
    text = table([row(replicax={"seconds": 0.1}, tensorflow={"seconds": 0.2})])
    assert "| small GPT | float32 | fit | 100 (100) | 200 (200) | 2.00 (2.00–2.00) |" in text


def test_what_failed_or_lost_otherwise_has_no_ratio():
    text = table(
        [
            row(
                replicax={"seconds": 0.1},
                tensorflow={"seconds": 0.2, "losses": (2.0, 1.51)},
                keras={"seconds": 0.2, "error": "ValueError: no"},
            )
        ]
    )
    assert text.count("≠") == 2 and "fails" in text and "median of no row" in text


def test_in_sixteen_bits_losses_may_differ_by_more():
    ours = {"seconds": 0.1, "tolerance": MODELS["gpt16"].tolerance}
    assert "≠" not in table(
        [row(replicax=ours, tensorflow={"seconds": 0.2, "losses": (2.0, 1.51)})]
    )


@pytest.mark.parametrize("name", MODELS)
def test_rows_come_in_batches(name):
    model = MODELS[name].smaller(2, 3)
    batches = model.batches
    assert [len(labels) for _, labels in batches] == [3, 3]
    again = np.concatenate([labels for _, labels in batches])
    np.testing.assert_array_equal(again, model.rows[1])
