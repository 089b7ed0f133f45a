"""Steps that begin together, and who hears of them."""

from replicax._core.events import (
    begin_common,
    begin_step,
    clear_pending,
    dispatched,
    is_on_devices,
    listen,
    position,
)


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
    clear_pending()
    assert not is_on_devices()


def test_listeners_hear_of_each_step_until_they_end():
    heard, also = [], []
    ends = [listen(heard.append), listen(also.append)]
    begin_step("train step")
    ends[0]()
    begin_step("run")
    ends[1]()
    begin_step("test step")
    assert heard == ["train step"]
    assert also == ["train step", "run"]


def test_a_listener_may_end_itself():
    heard, after = [], []

    def once(doing):
        heard.append(doing)
        end()

    end, end_after = listen(once), listen(after.append)
    begin_step("run")
    begin_step("train step")
    end_after()
    assert heard == ["run"]
    assert after == ["run", "train step"]
