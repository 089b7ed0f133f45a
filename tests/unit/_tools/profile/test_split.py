"""Spans of time and operations of devices, divided by hand."""

from __future__ import annotations

import pytest

from replicax._tools.profile.summary import divided
from replicax._tools.profile.times import (
    DeviceTimes,
    Moment,
    Operation,
    Span,
    Step,
    device_times,
    mean,
    split,
    union,
)


def span(part, begin, end, cpu=(0.0, 0.0)):
    return Span(part, Moment(begin, cpu[0]), Moment(end, cpu[1]))


def step(begin, end, cpu=0.0):
    return Step("train step", Moment(begin, 0.0), Moment(end, cpu))


def test_a_moment_belongs_to_the_span_that_began_last():
    # 0 ─ compute ───────────── 6, with compile from 1 to 4, and in that another from 2 to 3.
    spans = [span("compute", 0, 6), span("compile", 2, 3), span("compile", 1, 4)]
    assert split(step(0, 10), spans) == pytest.approx(
        {"compute": 3, "compile": 3, "python": 0, "other": 4}
    )


def test_spans_reach_beyond_the_step():
    found = split(step(2, 5), [span("input", 0, 3), span("compute", 4, 9), span("copy", 6, 7)])
    assert found == pytest.approx({"input": 1, "compute": 1, "python": 0, "other": 1})


def test_what_no_span_has_is_python_as_far_as_the_thread_computed():
    # Of 10 seconds 4 are in a span, in which the thread computed 1 of 4: 3 are Python's.
    found = split(step(0, 10, cpu=4.0), [span("compute", 0, 4, cpu=(0.0, 1.0))])
    assert found == pytest.approx({"compute": 4, "python": 3, "other": 3})


def test_the_parts_of_the_mean_are_the_mean_step():
    spans = [span("input", 0, 1), span("input", 4, 7)]
    found = mean([step(0, 4), step(4, 10)], spans)
    assert found["input"] == 2
    assert sum(found.values()) == pytest.approx(5)


def test_union():
    assert union([(4, 6), (0, 1), (5, 8), (1, 2), (3, 3)]) == [(0, 2), (4, 8)]


def test_a_collective_counts_where_nothing_is_computed_beside_it():
    first = [
        Operation("dot.1", 0, 4),
        Operation("psum.2", 3, 7),
        Operation("while.3", 0, 9),  # its body has events of its own
        Operation("python.4", 7, 8),
    ]
    second = [Operation("dot.1", 0, 6), Operation("all-reduce-start.2", 6, 7)]
    found = device_times({1: second, 0: first}, 2, communication={"psum.2"}, callbacks={"python.4"})
    assert found == (DeviceTimes(0, 2.0, 1.5, 0.5), DeviceTimes(1, 3.0, 0.5, 0.0))
    assert found[0].busy == 4.0


def test_the_time_of_a_program_is_divided_as_the_slowest_device_was_seen():
    times = [DeviceTimes(0, 1.0, 3.0, 0.0), DeviceTimes(1, 3.0, 1.0, 1.0)]
    found = divided({"compute": 5.0, "callbacks": 0.5}, times, seen=10.0)
    # The program took 10 where it was seen and 5 where it was measured: all is half as long.
    assert found == {"compute": 1.5, "collectives": 0.5, "callbacks": 1.0, "launch": 2.5}


def test_more_than_was_seen_is_made_to_fit():
    found = divided({"compute": 2.0, "callbacks": 0.0}, [DeviceTimes(0, 3.0, 1.0, 0.0)], seen=2.0)
    assert found == {"compute": 1.5, "collectives": 0.5, "callbacks": 0.0, "launch": 0.0}
