"""The number of steps, and who hears of them."""

from __future__ import annotations

from replicax._core.events import (
    begin_common,
    begin_step,
    dispatched,
    is_on_devices,
    listen,
    position,
    settled,
)


def test_steps_are_counted():
    before = begin_step("train step")
    assert begin_step("run") == before + 1


def test_what_all_workers_begin_together_has_a_count_of_its_own():
    before, _ = position()
    begin_step("train step", common=True)
    begin_step("run")
    assert position() == (before + 1, "train step")
    begin_common("reduce")
    assert position() == (before + 2, "reduce")


def test_devices_are_asked_until_they_are_done_or_forgotten():
    done = []
    dispatched(lambda: bool(done))
    assert is_on_devices()
    done.append(True)
    assert not is_on_devices()
    done.clear()
    settled()
    assert not is_on_devices()


def test_listeners_hear_of_each_step_until_they_end():
    heard, also = [], []
    ends = [listen(heard.append), listen(also.append)]
    first = begin_step("run")
    ends[0]()
    second = begin_step("run")
    ends[1]()
    begin_step("run")
    assert heard == [first]
    assert also == [first, second]


def test_a_listener_may_end_itself():
    heard, after = [], []

    def once(number):
        heard.append(number)
        end()

    end, end_after = listen(once), listen(after.append)
    numbers = [begin_step("run"), begin_step("run")]
    end_after()
    assert heard == numbers[:1]
    assert after == numbers
