"""What follows from profiles: scaling, causes, advice; all numbers by hand."""

import json

import pytest

from replicax._tools.doctor import text as doctor_text
from replicax._tools.doctor.conclusions import STRONG, WEAK, advice, findings, points, wanted_rows
from replicax._tools.doctor.examination import Examination
from replicax._tools.profile.result import DeviceUse

SLOW = (DeviceUse("CPU:0", 0.01, 0.3, 0.1), DeviceUse("CPU:1", 0.31, 0.0, 0.9))


@pytest.mark.parametrize(
    ("cause", "parts", "number"),
    [
        ("slow input", {"input": 0.6, "compute": 0.4}, "600 ms of 1e+03 ms (60%) for data"),
        ("slow copy", {"copy": 0.03, "compute": 0.07}, "take 30 ms of 100 ms (30%)"),
        (
            "recompilation",
            {"compile": 0.8, "compute": 0.2, "compiled": 12, "compiled_in": 9},
            "9 of 10 steps compiled 12 programs, which takes 800 ms",
        ),
        ("huge logging", {"callbacks": 0.05, "compute": 0.05}, "take 50 ms of 100 ms (50%)"),
        (
            "slow worker",
            {"compute": 0.31, "collectives": 0.04, "devices": SLOW},
            "CPU:1 computes 31.0 times as long as the others, which wait 300 ms",
        ),
        (
            "tiny batch",
            {"compute": 0.001, "launch": 0.002, "python": 0.004, "copy": 0.003, "rows": 4},
            "9 ms of 10 ms (90%); computing for 2 rows on each replica takes 1 ms",
        ),
        ("communication", {"collectives": 0.06, "compute": 0.04}, "take 60 ms of 100 ms (60%)"),
        ("unknown wait", {"other": 0.06, "compute": 0.04}, "waits 60 ms of 100 ms (60%)"),
    ],
)
def test_each_cause_is_named_with_its_number(made, cause, parts, number):
    last = made(**parts)
    found = advice(findings(last), last)
    assert found.cause == cause
    assert number in found.number
    assert found.advice


def test_nothing_stands_out(made):
    found = advice([], made(compute=0.9, input=0.1))
    assert (found.cause, found.share) == ("nothing", pytest.approx(0.9))
    assert "computing is 90% of a step" in found.number


def test_the_largest_comes_first_and_small_ones_not_at_all(made):
    found = findings(made(input=0.3, compile=0.5, callbacks=0.1, compute=0.1))
    assert [one.cause for one in found] == ["recompilation", "slow input"]


def test_a_device_that_is_a_little_slower_is_no_slow_worker(made):
    devices = (DeviceUse("CPU:0", 0.2, 0.3, 0.1), DeviceUse("CPU:1", 0.3, 0.0, 0.9))
    assert findings(made(compute=0.3, devices=devices)) == []


def test_the_slowest_device_is_compared_with_the_median_of_the_others(made):
    times = [0.1, 0.2, 0.6, 0.3]
    profile = made(devices=tuple(DeviceUse(f"CPU:{i}", t, 0, 0) for i, t in enumerate(times)))
    assert profile.slowest.name == "CPU:2"
    assert (profile.slowest.factor, profile.slowest.seconds) == pytest.approx((3.0, 0.4))


def test_a_slow_worker_is_named_with_what_it_does(made):
    workers = [made(compute=0.1, workers=0.3), made(compute=0.1, input=0.3)]
    found = findings(made(compute=1.0), workers)
    assert [one.cause for one in found] == ["slow worker"]
    assert found[0].share == pytest.approx(0.75)
    assert "Worker 1 takes 4.0 times as long" in found[0].number
    assert "its input wait takes 300 ms, theirs 0 ms" in found[0].number
    assert findings(made(compute=1.0), workers[:1]) == []
    assert findings(made(compute=1.0), [workers[0], workers[0]]) == []


def test_strong_scaling(made):
    # Twice the replicas: half of each part would be ideal.
    first, second = points(STRONG, [made(1, compute=0.8), made(2, compute=0.5, collectives=0.3)])
    assert (first.efficiency, first.lost["compute"]) == (1.0, 0.0)
    assert second.efficiency == pytest.approx(0.5)
    assert second.lost["compute"] == pytest.approx(0.1)
    assert second.lost["collectives"] == pytest.approx(0.3)


def test_weak_scaling(made):
    _, second = points(WEAK, [made(1, 8, compute=0.4), made(2, 16, compute=0.4, input=0.1)])
    assert second.efficiency == pytest.approx(0.8)
    assert (second.lost["compute"], second.lost["input"]) == (0.0, 0.1)
    assert doctor_text.losses(second) == "input wait 100 ms"


def test_what_is_lost_in_parts_is_what_is_lost(made):
    one, two = made(1, compute=0.8, python=0.2), made(4, compute=0.3, python=0.2, copy=0.1)
    for kind, ideal in ((STRONG, 0.25), (WEAK, 1.0)):
        point = points(kind, [one, two])[1]
        assert sum(point.lost.values()) == pytest.approx(point.seconds - ideal)


def test_rows_for_other_numbers_of_replicas(made):
    first = made(2, rows=64, compute=1.0)
    assert (wanted_rows(STRONG, first, 4), wanted_rows(WEAK, first, 4)) == (64, 128)
    assert wanted_rows(WEAK, made(rows=None, compute=1.0), 4) is None


def test_the_page_and_its_numbers(made):
    profiles = (made(1, compute=0.4), made(2, compute=0.3, input=0.3, callbacks=0.4))
    scaling = {STRONG: points(STRONG, profiles)}
    causes = tuple(findings(profiles[-1]))
    workers = (made(compute=0.1, workers=0.3), made(compute=0.1, input=0.3))
    found = Examination("train.py", profiles, workers, scaling, causes, causes[0])
    text = doctor_text.examination_to_text(found, cores=2, platform="cpu")
    assert "strong scaling" in text
    assert "weak scaling" not in text
    assert "slow input (30%)" in text
    words = text.split()
    table = words[words.index("workers") :]
    assert "0 400 100 compute 100 ms 1 400 400 input wait 300 ms" in " ".join(table)
    assert "2 virtual devices share the CPU's 2 cores" in " ".join(words)
    assert text.partition("first of all\n")[2].startswith("huge logging: Callbacks, printing")
    assert "virtual" not in doctor_text.examination_to_text(found, cores=2, platform="gpu")
    data = json.loads(doctor_text.to_json([], found))["examination"]
    assert data["advice"]["cause"] == "huge logging"
    assert [one["replicas"] for one in data["scaling"]["strong"]] == [1, 2]
