"""How long is too long: limits, and a clock that does not count when its process was stopped."""

from __future__ import annotations

import types

import pytest

from replicax._control import Limits
from replicax._control._heartbeat import Ticks
from replicax._core.errors import UsageError


@pytest.fixture(autouse=True)
def unset(monkeypatch):
    monkeypatch.delenv("RX_WATCHDOG_SECONDS", raising=False)
    monkeypatch.delenv("RX_WAIT_LIMIT_SECONDS", raising=False)


def test_without_variables_it_is_half_a_minute_and_ten():
    assert Limits.from_environ() == Limits(silence=30.0, timeout=600.0)


@pytest.mark.parametrize(("text", "timeout"), [("3600", 3600.0), (" 0 ", None)])
def test_the_variables_say_how_long(monkeypatch, text, timeout):
    monkeypatch.setenv("RX_WATCHDOG_SECONDS", " 120.5 ")
    monkeypatch.setenv("RX_WAIT_LIMIT_SECONDS", text)
    assert Limits.from_environ() == Limits(silence=120.5, timeout=timeout)


@pytest.mark.parametrize("text", ["-1", "soon", "nan", "inf"])
@pytest.mark.parametrize("name", ["RX_WATCHDOG_SECONDS", "RX_WAIT_LIMIT_SECONDS"])
def test_the_variables_are_numbers(monkeypatch, name, text):
    monkeypatch.setenv(name, text)
    with pytest.raises(UsageError, match=f"{name}='{text}'"):
        Limits.from_environ()


def test_signs_of_life_are_more_frequent_if_time_is_short():
    assert [Limits().beat, Limits(silence=1.0).beat] == [1.0, 0.2]


def test_time_in_which_the_process_was_stopped_counts_little(monkeypatch):
    times = iter([100.0, 101.0, 161.0, 161.5])
    clock = types.SimpleNamespace(monotonic=lambda: next(times))  # in place of its own alone
    monkeypatch.setattr("replicax._control._heartbeat.time", clock)
    ticks = Ticks(1.0)
    assert [ticks.tick(), ticks.tick(), ticks.tick()] == [1.0, 2.0, 0.5]
    assert ticks.now == 3.5
