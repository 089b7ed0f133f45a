"""What a comparison looks like as text, Markdown, JSON and files."""

import json
import math
import re
from dataclasses import replace

import pytest

from replicax._tools.compare import text as of_comparison
from replicax.report import save


def test_the_table_of_the_text(sample):
    # one_device: 1000 examples in 1 s twice; mirrored in 2 and 1.25 s: 500 and 800 per second,
    # median 650; ratios 0.5 and 0.8, median 0.65.
    lines = of_comparison.to_text(sample()).split("\n")
    assert lines[0] == (
        "cnn (12,345 parameters) on digits: 1437 examples, 2 epochs, batches of 64, seed 0, float32"
    )
    assert [re.split(" {2,}", line.strip()) for line in lines[2:7]] == [
        ["variables", "test", "test", "weight", "first", "examples", "times one"],
        ["strategy", "live on", "replicas", "loss", "accuracy", "difference", "step (s)", "/ s"]
        + ["device"],
        ["----------", "------------", "--------", "------", "--------", "----------", "--------"]
        + ["--------", "----------------"],
        ["one_device", "CPU:0", "1", "0.2500", "92.50%", "0", "1.5", "1,000", "1"],
        ["mirrored", "CPU:0-1 each", "2", "0.2500", "92.50%", "2.5e-06", "2.5", "650"]
        + ["0.65 (0.50-0.80)"],
    ]


def test_a_ratio_whose_rounds_are_far_apart_is_not_shown(sample):
    text = of_comparison.to_text(sample(mirrored=(2.0, 0.3)))  # ratios 0.5 and 3.3
    assert "unclear (0.50-3.33)" in text
    assert "--repeats" in text


def test_several_devices_of_one_cpu_and_a_busy_machine_are_explained(sample):
    text = " ".join(of_comparison.to_text(sample()).split())
    assert "2 virtual devices of one CPU" in text
    assert "busy" not in text
    assert "busy machine: other programs took 99.0 of" in " ".join(
        of_comparison.to_text(replace(sample(), busy_cores=99.0)).split()
    )


def test_json_has_every_raw_number(sample):
    data = json.loads(of_comparison.to_json(sample()))
    mirrored = data["measurements"][1]
    assert mirrored["round_seconds"] == [2.0, 1.25]
    assert mirrored["epochs"][1]["test_accuracy"] == 0.925
    assert mirrored["differing_weight"] == "dense/bias"
    assert data["machine"]["versions"] == {"python": "3.11.7", "replicax": "0.1.0"}
    assert data["settings"]["seed"] == 0
    assert data["baseline"] == "one_device"
    assert data["weight_limit"] == 1e-4


def test_json_has_what_follows_from_the_raw_numbers(sample):
    summary = json.loads(of_comparison.to_json(sample()))["summary"]
    assert summary["mirrored"] == {
        "examples_per_second": {"median": 650.0, "low": 500.0, "high": 800.0},
        "speed_ratio": {"median": 0.65, "low": 0.5, "high": 0.8},
    }


@pytest.mark.parametrize(("value", "text"), [(math.nan, "nan"), (math.inf, "inf")])
def test_json_says_what_is_no_number_in_words(sample, value, text):
    data = json.loads(of_comparison.to_json(sample(difference=value)), parse_constant=pytest.fail)
    assert data["measurements"][1]["weight_difference"] == text


def test_an_asynchronous_strategy_is_compared_by_accuracy(sample):
    text = of_comparison.verdict(sample(difference=None))
    assert "92.50% on test data; one device has 92.50%" in text
    assert "by accuracy" in of_comparison.to_text(sample(difference=None))


@pytest.mark.parametrize(("difference", "text"), [(0.0126, "1.3e-02"), (math.nan, "nan")])
def test_the_verdict_names_who_differs_and_where(sample, difference, text):
    assert f"mirrored differs by {text} in dense/bias" in of_comparison.verdict(
        sample(difference=difference)
    )
    assert "differs" not in of_comparison.verdict(sample())


@pytest.mark.parametrize(
    ("platform", "count", "is_said"), [("gpu", 1, 1), ("gpu", 2, 0), ("cpu", 1, 0)]
)
def test_one_accelerator_shows_no_scaling(sample, platform, count, is_said):
    comparison = sample()
    devices = tuple(
        replace(one, platform=platform) for one in comparison.machine.devices[:1] * count
    )
    comparison = replace(comparison, machine=replace(comparison.machine, devices=devices))
    assert of_comparison.to_text(comparison).count("needs a second accelerator") == is_said


def test_two_files_are_written_into_a_new_folder(tmp_path, sample):
    save(sample(difference=0.5), tmp_path / "a" / "b")
    files = save(sample(difference=0.25), tmp_path / "a" / "b")
    assert [file.name for file in files] == ["report.html", "compare.json"]
    data = json.loads(files[1].read_text())
    assert data["measurements"][1]["weight_difference"] == 0.25  # older files are replaced
