"""How many cores other programs take."""

from __future__ import annotations

import pytest

from replicax._tools import machine as busy


@pytest.mark.parametrize(
    ("machine", "ours", "expected"),
    [(4, 4, 1.5), (4, 3, 0.5), (8, 2, 0.0)],  # cores that we may not use are not taken from us
)
def test_cores_of_other_programs(monkeypatch, machine, ours, expected):
    seconds, clock = iter([100.0, 115.0]), iter([0.0, 10.0])
    monkeypatch.setattr(busy, "_seconds_of_others", lambda: next(seconds))
    monkeypatch.setattr(busy.time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(busy, "cores", lambda: ours)
    monkeypatch.setattr(busy.os, "cpu_count", lambda: machine)
    assert busy.OtherPrograms().cores() == expected


def test_this_process_is_none_of_the_others():
    others = busy.OtherPrograms()
    sum(range(3_000_000))
    assert 0 <= others.cores() < 1000


def test_a_note_where_much_is_taken(monkeypatch):
    monkeypatch.setattr(busy, "cores", lambda: 2)
    assert busy.busy_machine(0.3) == ""
    assert "1.3 of 2 cores" in busy.busy_machine(1.3)
