"""The program that provokes faults: what it says of trials that go wrong themselves."""

import os

import pytest
import reliability
from faults import all_faults, trial
from faults.fault import Outcome

ODD = """
import os, subprocess, sys, time
from faults.fault import Fault, Outcome

def promised(folder):
    return Outcome("named", True, seconds=1.5, named="worker 1")

def leaves_a_process(folder):
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"], start_new_session=True)
    return Outcome("named", True)

def never_ends(folder):
    time.sleep(100)

def dies(folder):
    os.kill(os.getpid(), 9)

FAULTS = [
    Fault("files", "one", promised),
    Fault("hangs", "two", leaves_a_process),
    Fault("strangers", "three", never_ends),
    Fault("wrong numbers", "four", dies),
]
"""


@pytest.fixture
def odd(tmp_path, monkeypatch):
    (tmp_path / "odd_faults").mkdir()
    (tmp_path / "odd_faults" / "__init__.py").touch()
    (tmp_path / "odd_faults" / "topic.py").write_text(ODD)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    return {fault.what: fault for fault in all_faults("odd_faults")}


def test_faults_come_in_the_order_of_the_table(odd):
    assert list(odd) == ["four", "two", "three", "one"]


def test_a_trial_gives_what_was_observed(odd):
    found = trial.try_apart(odd["one"], package="odd_faults")
    assert found == Outcome("named", True, 1.5, "worker 1", "nothing")


@pytest.mark.parametrize("what", ["two", "three", "four"])
def test_a_trial_that_leaves_something_hangs_or_dies_is_not_as_promised(odd, what):
    assert not trial.try_apart(odd[what], seconds=5, package="odd_faults").is_as_expected


def test_rounds_must_agree_but_for_their_seconds():
    first, later = Outcome("named", True, 1.0), Outcome("named", True, 3.0)
    assert reliability.agree([first, later])
    assert not reliability.agree([first, Outcome("named", True, 1.0, named="worker 0")])
    assert not reliability.agree([Outcome("went on", False)])
    assert reliability.seconds_of([first, later]) == "2.0 (1.0–3.0)"


def test_the_table_marks_what_was_not_promised(odd):
    made = reliability.markdown({odd["one"]: [Outcome("went on", False)]}, 1)
    assert "| one | **not as promised: went on** |" in made
    assert "### Files" in made


def test_rows_that_are_tried_again_take_their_places(odd):
    outcome, other = Outcome("named", True), Outcome("survived", True)
    page = reliability.markdown({odd["one"]: [outcome], odd["two"]: [outcome]}, 1)
    again = reliability.with_rows(page, {odd["two"]: [other]})
    assert again == reliability.markdown({odd["one"]: [outcome], odd["two"]: [other]}, 1).rstrip()
    with pytest.raises(SystemExit, match="three"):
        reliability.with_rows(page, {odd["three"]: [other]})
