"""The table of real models: what it compares, and what it refuses to."""

import numpy as np
import pytest
from harness.measure import Measured
from harness.report import Row
from harness.workloads import MODELS
from models import parse, sides, table, ways
from rich.console import Console


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


def test_each_side_has_a_column_and_a_median():
    told = {"replicax": 0.1, "torch": 0.3, "torch.compile": 0.05, "keras": 0.7}
    text = table([row(**{side: {"seconds": seconds} for side, seconds in told.items()})])
    cells = text.splitlines()[2].split(" | ")
    assert cells[4:] == ["–"] * 3 + ["3.00 (3.00–3.00)", "0.50 (0.50–0.50)", "7.00 (7.00–7.00) |"]
    medians = [part.rpartition(": ")[2] for part in text.splitlines()[-1][:-1].split("; ")]
    assert medians[1:] == ["3.00", "0.50", "7.00"]


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
    assert text.count("≠") == 2 and "fails" in text and text.count("no row") == 4


@pytest.fixture
def found(monkeypatch):
    """The sides that arguments ask for, on a machine with a C++ compiler or without one."""

    def found(arguments, compiler="/usr/bin/g++"):
        for name in "TENSORFLOW_PYTHON", "TORCH_PYTHON":
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr("shutil.which", lambda _: compiler)
        return list(sides(parse(arguments), Console(quiet=True)))

    return found


def test_sides_without_a_python_are_left_out(found):
    assert found([]) == ["replicax", "keras"]
    assert found(["--tensorflow", "tf/bin/python"]) == ["replicax", "tensorflow", "keras"]
    assert found(["--torch", "pt/bin/python"]) == ["replicax", "torch", "torch.compile", "keras"]


def test_without_a_compiler_pytorch_is_eager(found):
    assert found(["--torch", "pt/bin/python"], compiler=None) == ["replicax", "torch", "keras"]


def test_only_sides_with_custom_loops_train_two_models_at_once():
    every = ["replicax", "tensorflow", "torch", "torch.compile", "keras"]
    assert list(ways(MODELS["gpt"], every)) == every
    assert ways(MODELS["gan"], every) == dict.fromkeys(every[:3], ("loop",))


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
