"""The dispatcher starts late, ends with its strategy, and keeps nothing alive."""

import gc
import threading
import weakref

import pytest

from replicax._core.errors import CancelledError, CoordinatorError, UnavailableError
from replicax._ps.queue.lanes import ServerGone

from helpers import run_python, wait_until
from lane_fakes import FakeCoordination, lane_threads, raised


@pytest.fixture
def coordination():
    coordination = FakeCoordination()
    yield coordination
    coordination.close()
    assert lane_threads() == []


def test_nothing_is_started_before_the_first_task(coordination):
    assert coordination.done()
    assert coordination.wait()
    assert coordination.opened == []
    assert coordination.submit(lambda lane: 3).fetch() == 3
    assert len(coordination.opened) == 2


def test_lanes_are_opened_once(coordination):
    values = [coordination.submit(lambda lane: 1) for _ in range(5)]
    assert [value.fetch() for value in values] == [1] * 5
    assert len(lane_threads()) == 2


def test_lanes_that_cannot_be_opened_are_tried_again(coordination, monkeypatch):
    def lanes_of(worker):
        raise OSError("no cluster")

    with monkeypatch.context() as patch:
        patch.setattr(coordination, "lanes_of", lanes_of)
        with pytest.raises(OSError, match="no cluster"):
            coordination.submit(lambda lane: 1)
    assert coordination.submit(lambda lane: 1).fetch() == 1


def test_each_closure_has_its_own_number(coordination):
    seen = []
    lanes = {worker: coordination.lanes_of(worker) for worker in range(2)}
    for lane in coordination.opened:
        lane.run = lambda closure, *, more: seen.append(closure.id)
    coordination.lanes_of = lanes.get
    for _ in range(5):
        coordination.submit(None)
    coordination.wait()
    assert sorted(seen) == [0, 1, 2, 3, 4]


def test_a_server_that_will_not_come_back_is_raised_by_all_three(coordination):
    # Pair 116: the error of a server comes from schedule and join.
    def restore(server):
        raise UnavailableError("gone")

    def task(lane):
        raise ServerGone(1)

    coordination.engine.recoveries.restore = restore
    dispatcher = coordination
    for ask in (dispatcher.wait, dispatcher.done, lambda: dispatcher.submit(task)):
        assert isinstance(raised(dispatcher.submit(task).fetch), CancelledError)
        assert isinstance(raised(ask), UnavailableError)
        assert dispatcher.done()


def test_nothing_can_be_submitted_after_the_end(coordination):
    coordination.submit(lambda lane: 1).fetch()
    coordination.close()
    with pytest.raises(CoordinatorError, match="coordinator is closed"):
        coordination.submit(lambda lane: 1)


def test_the_threads_end_with_the_strategy():
    coordination = FakeCoordination()
    begun = threading.Event()

    def task(lane):
        begun.set()
        lane.until(threading.Event())

    value = coordination.submit(task)
    assert begun.wait(60)
    gone = weakref.ref(coordination)
    del coordination
    wait_until(lambda: gc.collect() >= 0 and gone() is None)
    assert isinstance(raised(value.fetch), CancelledError)
    wait_until(lambda: not lane_threads())


def test_the_end_of_a_program_ends_the_lanes():
    program = """
        import sys
        sys.path.insert(0, "tests")
        from lane_fakes import FakeCoordination

        coordination = FakeCoordination()
        coordination.submit(lambda lane: print("ran", flush=True)).fetch()
        for lane in coordination.opened:
            lane.close = lambda: print("closed", flush=True)
    """
    assert run_python(program) == "ran\nclosed\nclosed\n"
