"""What happens when workers and servers die: who repairs, who waits, who goes on."""

import contextlib
import itertools
import pickle
import threading

import pytest

from replicax._core.errors import CancelledError, CoordinatorError, UnavailableError
from replicax._ps.queue import lanes
from replicax._ps.queue.closures import Closure, ClosureQueue
from replicax._ps.queue.lanes import ComesLater, Lanes, ServerGone, StalenessGate, Work, WorkerGone

from helpers import wait_until
from lane_fakes import FakeLane, lane_threads, raised


class Cluster:
    """A queue with lanes that have not begun yet, and the servers that were restored."""

    def __init__(self):
        self.queue = ClosureQueue()
        self.restored = []
        self.restore = self.restored.append
        self.gate = None
        self.numbers = itertools.count()

    def begin(self, *lanes):
        self.lanes = Lanes(
            self.queue, on_server_gone=lambda server: self.restore(server), gate=self.gate
        )
        self.lanes.add(lanes)

    def schedule(self, task, **options):
        closure = Closure(next(self.numbers), task, **options)
        self.queue.put(closure)
        return closure.value


@pytest.fixture
def cluster():
    cluster = Cluster()
    yield cluster
    cluster.lanes.close()
    assert lane_threads() == []


def worker_of(lane):
    return lane.worker


def dies(times, *, started=True):
    """A task whose worker dies a number of times; then it gives the worker."""
    left = [None] * times

    def task(lane):
        if left:
            left.pop()
            raise WorkerGone(lane.worker, "killed", started)
        return lane.worker

    return task


class Held:
    """A task that runs until it is let go."""

    def __init__(self, outcome=worker_of):
        self.outcome = outcome
        self.begun, self.end = threading.Event(), threading.Event()

    def __call__(self, lane):
        self.begun.set()
        lane.until(self.end)
        return self.outcome(lane)


def test_threads_are_named_after_their_worker(cluster):
    cluster.begin(FakeLane(0), FakeLane(1), FakeLane(1))
    names = {thread.name for thread in lane_threads()}
    assert names == {"replicax-lane-0-0", "replicax-lane-1-0", "replicax-lane-1-1"}
    assert all(thread.daemon for thread in lane_threads())


@pytest.mark.parametrize(
    ("gate", "more"),
    [(None, [True, True, False]), (StalenessGate(1), [False, False, False])],
    ids=["unbounded", "bounded"],
)
def test_a_lane_reads_ahead_if_more_waits_and_staleness_has_no_bound(cluster, gate, more):
    cluster.gate, lane = gate, FakeLane(0)
    for _ in range(3):
        cluster.schedule(worker_of)
    cluster.begin(lane)
    cluster.queue.wait()
    assert lane.more == more


def test_a_closure_that_comes_later_lets_others_run_first(cluster):
    order = []

    def last(lane):
        if len(order) < 2:
            raise ComesLater
        order.append("last")

    cluster.schedule(last)
    for name in ("first", "second"):
        cluster.schedule(lambda lane, name=name: order.append(name))
    cluster.begin(FakeLane(0))
    cluster.queue.wait()
    assert order == ["first", "second", "last"]


def test_an_error_of_a_closure_is_raised_and_the_lane_goes_on(cluster):
    cluster.begin(FakeLane(0))

    def bad(lane):
        raise KeyError("bad")

    value = cluster.schedule(bad)
    with pytest.raises(KeyError, match="bad"):
        cluster.queue.wait()
    assert isinstance(raised(value.fetch), KeyError)
    assert cluster.schedule(worker_of).fetch() == 0


def test_a_closure_runs_elsewhere_when_its_worker_dies(cluster):
    # Pair 116: both workers die and come back; every closure has run.
    recovered = []
    cluster.begin(*(FakeLane(w, recover=lambda w=w: recovered.append(w)) for w in (0, 1)))
    values = [cluster.schedule(dies(i % 3)) for i in range(10)]
    assert cluster.queue.wait()
    assert {value.fetch() for value in values} <= {0, 1}
    assert len(recovered) == sum(i % 3 for i in range(10))


def test_one_lane_gets_the_worker_back_while_its_sibling_waits(cluster):
    back, recovering = threading.Event(), []

    def recover():
        recovering.append(threading.current_thread().name)
        assert back.wait(60)

    both, first = threading.Barrier(2), [True, True]

    def task(lane):
        if first:
            first.pop()
            both.wait(60)
            raise WorkerGone(lane.worker)
        return lane.worker

    cluster.begin(FakeLane(0, recover), FakeLane(0, recover))
    values = [cluster.schedule(task) for _ in range(2)]
    wait_until(lambda: recovering)
    assert not cluster.queue.wait(timeout=0.02)  # nobody else is there to run them
    back.set()
    assert [value.fetch() for value in values] == [0, 0]
    assert len(recovering) == 1


def test_the_other_workers_go_on_while_one_is_got_back(cluster):
    dead, back = threading.Event(), threading.Event()
    cluster.begin(FakeLane(0, recover=lambda: (dead.set(), back.wait(60))))
    value = cluster.schedule(dies(1))
    assert dead.wait(60)
    cluster.lanes.add([FakeLane(1)])
    assert value.fetch() == 1
    assert all(cluster.schedule(worker_of).fetch() == 1 for _ in range(5))
    back.set()
    both = threading.Barrier(2, timeout=60)
    values = [cluster.schedule(lambda lane: (both.wait(), lane.worker)) for _ in range(2)]
    assert {value.fetch()[1] for value in values} == {0, 1}


def test_an_idle_sibling_of_a_dead_worker_takes_nothing_for_it(cluster):
    dead, back, seen = threading.Event(), threading.Event(), []

    def recover():
        dead.set()
        assert back.wait(60)

    def second(lane):
        seen.append(back.is_set())

    cluster.begin(FakeLane(0, recover), FakeLane(0, recover))
    cluster.schedule(dies(1))
    assert dead.wait(60)
    value = cluster.schedule(second)
    assert not cluster.queue.wait(timeout=0.02)
    back.set()
    value.fetch()
    assert seen == [True]


@pytest.mark.parametrize(
    ("errors", "restored"),
    [([WorkerGone(0), WorkerGone(0)], []), ([ServerGone(2)], [2])],
    ids=["a worker", "a server"],
)
def test_who_is_gone_while_a_worker_is_made_ready_is_got_back(cluster, errors, restored):
    tries = []

    def recover():
        tries.append(1)
        if len(tries) <= len(errors):
            raise errors[len(tries) - 1]

    cluster.begin(FakeLane(0, recover))
    assert cluster.schedule(dies(1)).fetch() == 0
    assert (len(tries), cluster.restored) == (len(errors) + 1, restored)


def never_back():
    raise UnavailableError("waited for an hour", "/job:worker/task:0")


def test_a_worker_that_will_not_come_back_is_done_without(cluster, caplog):
    gone, died = (FakeLane(0, never_back), FakeLane(0, never_back)), threading.Event()

    def task(lane):
        if lane.worker == 0:
            died.set()
            raise WorkerGone(0)
        assert died.wait(60)
        return lane.worker

    cluster.begin(*gone, FakeLane(1))
    values = [cluster.schedule(task) for _ in range(2)]
    assert [value.fetch() for value in values] == [1, 1]
    wait_until(lambda: all(lane.closed.is_set() for lane in gone))
    wait_until(lambda: len(lane_threads()) == 1)
    (said,) = [record.getMessage() for record in caplog.records]
    assert said == "Worker 0 is left out; the others go on. waited for an hour"
    assert cluster.queue.wait()
    assert {cluster.schedule(worker_of).fetch() for _ in range(4)} == {1}


def test_the_last_worker_that_is_gone_leaves_no_others(cluster, caplog):
    cluster.begin(FakeLane(0, never_back))
    with pytest.raises(UnavailableError):
        cluster.schedule(dies(1)).fetch()
    assert "others" not in caplog.text


def test_without_a_worker_all_fails_until_one_joins(cluster):
    cluster.begin(FakeLane(0, never_back))
    value = cluster.schedule(dies(1))
    with pytest.raises(UnavailableError, match="add_worker"):
        cluster.queue.wait()
    assert isinstance(raised(value.fetch), UnavailableError)
    with pytest.raises(UnavailableError, match="add_worker"):
        cluster.schedule(worker_of)
    cluster.lanes.add([FakeLane(1)])
    assert cluster.schedule(worker_of).fetch() == 1


def test_a_worker_that_cannot_be_made_ready_is_an_error_and_is_done_without(cluster):
    def recover():
        raise OSError("the data set cannot be made")

    cluster.begin(FakeLane(0, recover))
    cluster.schedule(dies(1))
    with pytest.raises(OSError, match="the data set cannot be made"):
        cluster.queue.wait()


def test_a_closure_that_never_began_is_not_to_blame(cluster):
    cluster.begin(FakeLane(0), FakeLane(1))
    assert cluster.schedule(dies(9, started=False)).fetch() in (0, 1)


def test_one_lane_restores_a_server_while_the_others_wait(cluster):
    up, restoring, broken = threading.Event(), [], [True]

    def restore(server):
        restoring.append(server)
        assert up.wait(60)
        broken.clear()

    def task(lane):
        if broken:
            raise ServerGone(1, "killed")
        return lane.worker

    cluster.restore = restore
    cluster.begin(*(FakeLane(worker) for worker in (0, 0, 1, 1)))
    values = [cluster.schedule(task) for _ in range(8)]
    wait_until(lambda: restoring)
    assert not cluster.queue.wait(timeout=0.02)
    up.set()
    assert {value.fetch() for value in values} <= {0, 1}
    assert restoring == [1]


def test_a_call_fails_when_a_server_will_not_come_back(cluster):
    def restore(server):
        raise UnavailableError("gone")

    def call():
        raise ServerGone(0)

    cluster.restore = restore
    cluster.begin(FakeLane(0))
    with pytest.raises(UnavailableError, match="gone"):
        cluster.lanes.with_servers(call)
    assert cluster.queue.wait()


def test_who_waits_at_the_gate_is_cancelled_when_another_fails(cluster):
    cluster.gate = StalenessGate(0)
    bad = Held(lambda lane: 1 / 0)
    cluster.begin(FakeLane(0), FakeLane(1))
    cluster.schedule(bad)
    assert bad.begun.wait(60)
    value = cluster.schedule(worker_of)
    wait_until(lambda: not cluster.queue.has_more)
    bad.end.set()
    with pytest.raises(ZeroDivisionError):
        cluster.queue.wait()
    assert isinstance(raised(value.fetch), CancelledError)
    assert cluster.schedule(worker_of).fetch() in (0, 1)


def test_a_worker_that_died_leaves_the_gate(cluster):
    cluster.gate = StalenessGate(0)
    dead, back = threading.Event(), threading.Event()
    cluster.begin(FakeLane(0, recover=lambda: (dead.set(), back.wait(60))))
    value = cluster.schedule(dies(1))
    assert dead.wait(60)
    cluster.lanes.add([FakeLane(1)])
    assert value.fetch() == 1
    back.set()


def test_closing_ends_what_runs_and_who_waits(cluster):
    held = Held()
    lanes = [FakeLane(0), FakeLane(0), FakeLane(1)]
    cluster.begin(*lanes)
    value = cluster.schedule(held)
    assert held.begun.wait(60)
    cluster.lanes.close()
    assert lane_threads() == []
    assert all(lane.closed.is_set() for lane in lanes)
    assert isinstance(raised(value.fetch), CancelledError)
    late = FakeLane(2)
    with pytest.raises(CoordinatorError, match=r"\[2\].*coordinator is closed"):
        cluster.lanes.add([late])
    assert late.closed.is_set()


def test_closing_ends_who_waits_for_a_dead_worker(cluster):
    lane = FakeLane(0)
    lane.recover = lambda: lane.until(threading.Event())
    cluster.begin(lane, FakeLane(0))
    cluster.schedule(dies(9))
    wait_until(lambda: len(cluster.queue) == 1)
    cluster.lanes.close()
    assert lane_threads() == []


def test_a_lane_that_connects_while_all_is_closed_keeps_no_connection(cluster):
    lane, reached, closed = FakeLane(0), threading.Event(), threading.Event()
    links = []
    close = lane.close

    def recover():
        reached.set()
        assert closed.wait(60)
        links.append("connection")

    def closing():
        links.clear()
        close()
        closed.set()

    lane.recover, lane.close = recover, closing
    cluster.begin(lane)
    cluster.schedule(dies(1))
    assert reached.wait(60)
    cluster.lanes.close()
    assert links == [] and lane_threads() == []


def test_closing_says_which_threads_it_could_not_end(cluster, caplog):
    end = threading.Event()
    cluster.begin(FakeLane(3))
    begun = threading.Event()
    cluster.schedule(lambda lane: (begun.set(), end.wait(60)))
    assert begun.wait(60)
    cluster.lanes.close(timeout=0.01)
    assert "still wait for workers or servers: replicax-lane-3-0." in caplog.text
    end.set()
    wait_until(lambda: not lane_threads())


def test_a_lane_can_close_all(cluster):
    cluster.begin(FakeLane(0), FakeLane(1))
    value = cluster.schedule(lambda lane: cluster.lanes.close())
    assert isinstance(raised(value.fetch), CancelledError)
    wait_until(lambda: not lane_threads())


def test_an_error_of_the_engine_itself_reaches_the_program(cluster, monkeypatch):
    def put_back(closure, died=None):
        monkeypatch.undo()
        cluster.queue.put_back(closure)
        raise AssertionError("a fault of the engine")

    monkeypatch.setattr(cluster.queue, "put_back", put_back)
    cluster.begin(FakeLane(0))
    cluster.schedule(dies(1))
    with pytest.raises(AssertionError, match="a fault of the engine"):
        cluster.queue.wait()


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (WorkerGone(3, "killed", False), "worker 3 is gone: killed."),
        (WorkerGone(3), "worker 3 is gone."),
        (ServerGone(1, "silent"), "server 1 is gone: silent."),
    ],
)
def test_who_is_gone_is_said_and_travels(error, text):
    copy = pickle.loads(pickle.dumps(error))
    assert text in str(copy)
    assert "The closure runs again" in str(copy)
    assert vars(copy) == vars(error)


def test_closures_that_end_count(monkeypatch):
    moments = iter([1.0, 3.0, 5.0, 6.0, 7.0, 10.0, 13.0])
    monkeypatch.setattr(lanes, "clock", lambda: next(moments))
    done = Work()
    for worker in (0, 0):
        with done.of(worker):
            pass
    with contextlib.suppress(KeyError), done.of(1):
        raise KeyError
    with done.of(1):
        pass
    assert done.done() == {0: (2, 3.0), 1: (1, 3.0)}
