"""What users call: schedule, join, done, fetch, data sets, and who is who."""

import gc
import threading
import weakref
from types import SimpleNamespace

import pytest

from replicax._core.errors import CancelledError, UsageError
from replicax.coordinator import ClusterCoordinator, RemoteValue

from helpers import wait_until
from lane_fakes import FakeStrategy, in_thread, lane_threads, raised


@pytest.fixture
def strategy():
    strategy = FakeStrategy()
    yield strategy
    strategy.coordination.close()
    assert lane_threads() == []


@pytest.fixture
def coordinator(strategy):
    return ClusterCoordinator(strategy)


def bad():
    raise ValueError("bad")


def test_there_is_one_for_each_strategy(strategy):
    # Pair 103 of the semantics.
    assert ClusterCoordinator(strategy) is ClusterCoordinator(strategy)
    assert ClusterCoordinator(strategy) is not ClusterCoordinator(FakeStrategy())
    assert ClusterCoordinator(strategy).strategy is strategy


def test_it_may_go_while_its_functions_run(strategy):
    value = ClusterCoordinator(strategy).schedule(lambda: 3)
    gc.collect()
    ClusterCoordinator(strategy).join()
    assert value.fetch() == 3


def test_it_and_its_strategy_are_freed_and_the_threads_end():
    coordinator = ClusterCoordinator(FakeStrategy())
    assert coordinator.schedule(lambda: 1).fetch() == 1
    gone = weakref.ref(coordinator), weakref.ref(coordinator.strategy)
    del coordinator
    # The threads let go of it a moment later.
    wait_until(lambda: gc.collect() >= 0 and [ref() for ref in gone] == [None, None])
    wait_until(lambda: not lane_threads())


def test_another_strategy_is_refused():
    with pytest.raises(UsageError, match=r"ParameterServerStrategy, got object"):
        ClusterCoordinator(object())


def test_functions_become_tasks_with_their_arguments(strategy, coordinator):
    traced = []

    def task(fn, args, kwargs):
        traced.append((args, kwargs))
        return lambda lane: fn(*args, **kwargs)

    strategy.coordination.task = task
    value = coordinator.schedule(lambda x, y=0: x + y, args=[1], kwargs={"y": 2})
    assert isinstance(value, RemoteValue)
    assert value.fetch() == 3
    assert coordinator.schedule(lambda: 4).fetch() == 4
    assert traced == [((1,), {"y": 2}), ((), {})]


def test_what_cannot_be_traced_is_not_scheduled(strategy, coordinator):
    def task(fn, args, kwargs):
        raise TypeError("not made by rx.function")

    strategy.coordination.task = task
    with pytest.raises(TypeError, match="not made by"):
        coordinator.schedule(lambda: 1)
    assert coordinator.done()


def test_fetch_raises_what_the_function_raised(coordinator):
    values = [coordinator.schedule(lambda: 1), coordinator.schedule(bad)]
    with pytest.raises(ValueError, match="bad"):
        coordinator.fetch(values)
    with pytest.raises(ValueError, match="bad"):
        coordinator.join()


def test_join_and_fetch_let_later_functions_see_all_updates(strategy, coordinator):
    value = coordinator.schedule(lambda: 1)
    coordinator.join()
    assert strategy.coordination.barriers == 1
    coordinator.fetch([value])
    assert strategy.coordination.barriers == 2
    coordinator.fetch([1, 2])
    assert strategy.coordination.barriers == 2


def test_a_long_function_is_waited_for_and_cancelled_when_another_fails(coordinator):
    # Pair 109.
    begun, end = threading.Event(), threading.Event()

    def long():
        begun.set()
        assert end.wait(60)

    value = coordinator.schedule(long)
    assert begun.wait(60)
    raised(coordinator.schedule(bad).fetch)
    joining = in_thread(coordinator.join)
    assert joining.waits()
    end.set()
    with pytest.raises(ValueError, match="bad"):
        joining.result()
    with pytest.raises(CancelledError, match="The corresponding function is cancelled. Please res"):
        value.fetch()
    assert coordinator.schedule(lambda: 1).fetch() == 1


def test_per_worker_data_sets_are_the_strategys(strategy, coordinator):
    assert coordinator.create_per_worker_dataset([1]) == "data set"
    coordinator.create_per_worker_dataset([2], shard="dynamic", num_splits=3)
    assert strategy.coordination.datasets == [([1], "off", None), ([2], "dynamic", 3)]


def test_another_way_to_share_is_refused(coordinator):
    with pytest.raises(UsageError, match="`shard`.*'dynamic'.*'auto'"):
        coordinator.create_per_worker_dataset([1], shard="auto")


def test_no_splits_at_all_are_refused(coordinator):
    with pytest.raises(UsageError, match="`num_splits`.* 0"):
        coordinator.create_per_worker_dataset([1], shard="dynamic", num_splits=0)


def test_a_worker_joins_while_functions_run(coordinator):
    end = threading.Event()
    held = [coordinator.schedule(lambda: end.wait(60)) for _ in range(2)]
    value = coordinator.schedule(lambda: "ran")
    assert coordinator.add_worker() == 2
    assert value.fetch() == "ran"
    end.set()
    assert coordinator.fetch(held) == [True, True]


def test_progress_is_shown_when_asked_for(coordinator, monkeypatch):
    end, said = threading.Event(), []
    terminal = SimpleNamespace(write=lambda text: (said.append(text), end.set()), flush=end.set)
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr("replicax.coordinator._coordinator._SECONDS", 0.001)
    for _ in range(2):
        coordinator.schedule(lambda: end.wait(60))
    coordinator.join(progress=True)
    monkeypatch.undo()
    assert said[0] == "\r0 of 2 scheduled functions have ended"
    assert said[-1] == "\n"


def test_progress_is_not_shown_otherwise(coordinator, capsys):
    coordinator.schedule(lambda: 1)
    coordinator.join()
    coordinator.join(progress=True)
    assert capsys.readouterr().err == ""


def test_progress_ends_with_an_error(coordinator):
    coordinator.schedule(bad)
    with pytest.raises(ValueError, match="bad"):
        coordinator.join(progress=True)
