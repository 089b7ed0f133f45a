"""The rules of schedule, join and done: order, at least once, the first error, and what is left."""

import gc
import itertools
import traceback
import weakref

import jax.numpy as jnp
import numpy as np
import pytest

from replicax._core.errors import CancelledError, CoordinatorError, UnavailableError
from replicax._ps.queue.closures import Closure, ClosureQueue
from replicax._ps.queue.remote_value import RemoteValue, RemoteValueStatus, fetched, holds_remote

from helpers import wait_until
from lane_fakes import in_thread, raised

CANCELLED = r"The corresponding function is cancelled\. Please reschedule the function\."


@pytest.fixture
def queue():
    return ClosureQueue()


@pytest.fixture
def put(queue):
    numbers = itertools.count()

    def put(into=queue, **options):
        closure = Closure(next(numbers), None, **options)
        into.put(closure)
        return closure

    return put


def status(closure):
    return closure.value.state


def test_done_when_nothing_waits_or_runs(queue, put):
    assert queue.wait(0)
    put()
    assert not queue.wait(0)
    closure = queue.get(0)
    assert not queue.wait(0)
    queue.mark_finished(closure, None)
    assert queue.wait(0)


def test_its_length_is_what_has_not_ended(queue, put):
    put(), put(), put()
    queue.get(0)
    assert len(queue) == 3
    queue.mark_finished(queue.get(0), None)
    assert len(queue) == 2


def test_put_waits_for_room(put):
    queue = ClosureQueue(capacity=2)
    put(queue), put(queue)
    third = in_thread(lambda: put(queue))
    assert third.waits()
    queue.get(1)
    assert third.result()
    assert len(queue) == 3


def test_an_error_ends_the_wait_for_room(put):
    queue = ClosureQueue(capacity=1)
    put(queue)
    failing = queue.get(0)
    put(queue)
    third = in_thread(lambda: put(queue))
    assert third.waits()
    queue.mark_failed(failing, ValueError("bad"))
    with pytest.raises(ValueError, match="bad"):
        third.result()
    assert queue.wait(0)


def test_what_is_put_back_is_the_next(queue, put):
    first = put()
    put()
    assert queue.get(0) is first
    queue.put_back(first, died=0)
    assert queue.get(1) is first
    assert first.deaths == [0]
    queue.mark_finished(first, "once")
    assert first.value.fetch() == "once"


def test_a_put_that_raises_schedules_nothing(queue, put):
    put()
    queue.mark_failed(queue.get(0), ValueError("bad"))
    late = Closure(9, None)
    with pytest.raises(ValueError, match="bad"):
        queue.put(late)
    assert len(queue) == 0
    assert status(late) is RemoteValueStatus.NOT_READY


def test_what_waits_is_cancelled_at_once(queue, put):
    put()
    failing = queue.get(0)
    waiting = [put(), put()]
    queue.mark_failed(failing, ValueError("bad\nand more"))
    for closure in waiting:
        with pytest.raises(
            CancelledError,
            match=rf"Closure {closure.id} .*"
            rf"waited when another failed \(ValueError: bad\)\. {CANCELLED}$",
        ):
            closure.value.fetch()


def test_what_is_put_back_after_an_error_is_cancelled(queue, put):
    put(), put()
    failing, lost = queue.get(0), queue.get(1)
    queue.mark_failed(failing, ValueError("bad"))
    queue.put_back(lost, died=1)
    with pytest.raises(ValueError, match="bad"):
        queue.wait()
    with pytest.raises(CancelledError, match="it was put back when another failed"):
        lost.value.fetch()


def test_the_first_error_wins_and_each_keeps_its_own(queue, put):
    put(), put()
    first, second = queue.get(0), queue.get(1)
    queue.mark_failed(first, ValueError("first"))
    queue.mark_failed(second, KeyError("second"))
    with pytest.raises(ValueError, match="first"):
        queue.wait()
    assert queue.wait()
    assert str(raised(second.value.fetch)) == "'second'"
    assert str(raised(first.value.fetch)) == "first"


def test_two_threads_wait_and_one_of_them_gets_the_error(queue, put):
    put()
    closure = queue.get(0)
    waiting = [in_thread(queue.wait) for _ in range(2)]
    queue.mark_failed(closure, ValueError("bad"))
    errors = [raised(thread.result) for thread in waiting]
    assert sorted(type(error).__name__ for error in errors) == ["NoneType", "ValueError"]


def test_fetching_a_failure_again_does_not_lengthen_its_traceback(queue, put):
    closure = put()
    queue.mark_failed(queue.get(0), ValueError("bad"))
    lengths = {
        len(traceback.extract_tb(raised(closure.value.fetch).__traceback__)) for _ in range(3)
    }
    assert len(lengths) == 1


def test_an_error_without_truth_is_an_error(queue, put):
    class Empty(Exception):
        def __len__(self):
            return 0

    closure = put()
    queue.mark_failed(queue.get(0), Empty())
    assert status(closure) is RemoteValueStatus.ABORTED
    with pytest.raises(Empty):
        queue.wait()


def test_an_error_of_no_closure_cancels_all(queue, put):
    closure = put()
    queue.mark_failed(None, UnavailableError("a server is gone", "/job:ps/task:0"))
    with pytest.raises(UnavailableError, match="a server is gone"):
        queue.wait(0)
    with pytest.raises(CancelledError, match="UnavailableError: a server is gone"):
        closure.value.fetch()


def test_a_closure_that_workers_die_of_fails(queue, put):
    deadly = put()
    for worker in (0, 1, 0, 2):
        assert queue.wait(timeout=0) is False
        queue.put_back(queue.get(worker), died=worker)
    with pytest.raises(
        CoordinatorError,
        match=r"Closure 0 .* 4 times .*worker 0 \(2x\), worker 1 \(1x\), worker 2 \(1x\)\.",
    ):
        queue.wait()
    assert raised(deadly.value.fetch).args[0].startswith("Closure 0 ")
    assert queue.wait()


def test_who_waits_for_room_hears_that_no_worker_is_left(put):
    queue = ClosureQueue(capacity=1)
    queue.admit(0)
    put(queue)
    second = in_thread(lambda: put(queue))
    assert second.waits()
    queue.retire(0, UnavailableError("no"))
    with pytest.raises(UnavailableError, match="add_worker"):
        second.result()


def test_closing_cancels_everything(queue, put):
    put()
    running, waiting = queue.get(0), put()
    joining = in_thread(queue.wait)
    queue.close()
    for closure in (running, waiting):
        with pytest.raises(
            CancelledError, match=f"it waited or ran when the coordinator was closed. {CANCELLED}"
        ):
            closure.value.fetch()
    with pytest.raises(CancelledError, match=CANCELLED):
        joining.result()
    assert queue.wait()


def test_who_waits_for_a_closure_hears_of_the_end(queue):
    idle = in_thread(lambda: queue.get(0))
    assert idle.waits()
    queue.close()
    assert idle.result() is None
    assert queue.get(1) is None


def test_what_ends_after_closing_does_not_count(queue, put):
    for _ in range(3):
        put()
    closures = [queue.get(0) for _ in range(3)]
    queue.close()
    queue.mark_finished(closures[0], 1)
    queue.mark_failed(closures[1], ValueError("bad"))
    queue.put_back(closures[2])
    errors = [raised(closure.value.fetch) for closure in closures]
    assert {type(error) for error in errors} == {CancelledError}


def test_a_retired_worker_takes_nothing(queue, put):
    queue.admit(0), queue.admit(1)
    waiting = in_thread(lambda: queue.get(0))
    assert waiting.waits()
    queue.retire(0, UnavailableError("no"))
    assert waiting.result() is None
    put()
    assert queue.get(0) is None


def test_without_a_worker_everything_fails(queue, put):
    queue.admit(0), queue.admit(1)
    queue.retire(1, UnavailableError("no"))
    closures = [put(), put(), put()]
    running = queue.get(0)
    queue.retire(0, UnavailableError("not in time"))
    queue.put_back(running, died=0)
    with pytest.raises(
        UnavailableError,
        match=r"worker 0, the last one, is gone "
        r"\(UnavailableError: not in time\)\.",
    ) as caught:
        queue.wait()
    assert {raised(closure.value.fetch) for closure in closures} == {caught.value}
    assert queue.wait()
    for _ in range(2):
        with pytest.raises(UnavailableError, match="add a worker with `add_worker"):
            put()
    queue.admit(2)
    assert put() is queue.get(2)


def settled(result):
    value = RemoteValue()
    value.fulfil(result)
    return value


def test_only_the_first_settlement_counts():
    value = settled(1)
    value.fail(ValueError("late"))
    value.fulfil(2)
    assert value.fetch() == 1
    failed = RemoteValue()
    failed.fail(ValueError("bad"))
    failed.fulfil(1)
    with pytest.raises(ValueError, match="bad"):
        failed.get()


def test_remote_values_in_a_nest_are_replaced_and_the_rest_is_left():
    array, other = jnp.ones(2), object()
    nest = {"a": settled((1, 2)), "b": [array, settled(3)], "c": other, "d": None}
    found = fetched(nest)
    assert found == {"a": (1, 2), "b": [array, 3], "c": other, "d": None}
    assert found["b"][0] is array
    assert holds_remote(nest)
    assert not holds_remote(found)


def test_a_value_is_freed_with_its_last_user():
    value = settled(np.ones(3))
    gone = weakref.ref(value)
    del value
    wait_until(lambda: gc.collect() >= 0 and gone() is None)  # the thread lets go of it, too


def test_how_many_wait_or_run_when_another_one_comes():
    queue = ClosureQueue()
    for number in range(3):
        queue.put(Closure(number, None))
    queue.get(0)
    queue.put(Closure(3, None))
    # Before them were 0, 1, 2 and 3: one runs.
    assert queue.depths == (4, 6)
    queue.close()
