"""Workers, servers and a strategy that are plain objects of this process, for the coordinator."""

from __future__ import annotations

import threading
from types import SimpleNamespace

from replicax._core.errors import UnavailableError
from replicax._ps.queue.coordination import Coordination
from replicax._ps.queue.lanes import WorkerGone
from replicax._ps.store.servers import Early

from helpers import begun_threads, is_waiting, wait_until


class FakeLane:
    """A lane whose tasks are functions of the lane; `recover` may be replaced."""

    def __init__(self, worker, recover=lambda: None):
        self.worker = worker
        self.recover = recover
        self.more = []
        self.closed = threading.Event()

    def run(self, closure, *, more):
        self.more.append(more)
        return closure.task(self)

    def close(self):
        self.closed.set()

    def until(self, event):
        """Compute until the event, or until the lane is closed."""
        while not event.wait(0.005):
            if self.closed.is_set():
                raise WorkerGone(self.worker, "closed")


class FakeCluster:
    """Members that nobody reaches."""

    num_servers = 0

    def __init__(self, num_workers):
        self.num_workers = num_workers

    def member(self, role, index, **options):
        raise UnavailableError("it is none")

    def add_worker(self):
        self.num_workers += 1
        return self.num_workers - 1

    def close(self):
        pass


class FakeCoordination(Coordination):
    """What a strategy of two workers can do; a task is `fn` with its arguments."""

    def __init__(self, num_workers=2, lanes_each=1, max_staleness=None):
        self.lanes_each = lanes_each
        self.opened = []
        self.datasets = []
        self.restored = []
        nothing = SimpleNamespace(meet=lambda: None, restore=self.restored.append, bare=None)
        engine = SimpleNamespace(
            cluster=FakeCluster(num_workers),
            dial=nothing,
            client=FakeCluster(0),
            steady=SimpleNamespace(early=Early()),
            store=None,
            recoveries=nothing,
            meanwhile=False,
            platform="cpu",
            barriers=0,
        )
        super().__init__(engine, None, None, max_staleness=max_staleness)

    @property
    def barriers(self):
        return self.engine.barriers

    def task(self, fn, args, kwargs):
        return lambda lane: fn(*args, **kwargs)

    def lanes_of(self, worker):
        assert worker not in [lane.worker for lane in self.opened]
        lanes = [FakeLane(worker) for _ in range(self.lanes_each)]
        self.opened += lanes
        return lanes

    def worker_dataset(self, dataset_or_fn, shard, num_splits=None):
        self.datasets.append((dataset_or_fn, shard, num_splits))
        return "data set"


class FakeStrategy:
    """A strategy, as far as its coordinator asks."""

    def __init__(self, **options):
        self.coordination = FakeCoordination(**options)


def lane_threads():
    """The threads of lanes of this test that are alive."""
    return begun_threads("replicax-lane")


def raised(call):
    """What a call raises, or None."""
    try:
        call()
    except Exception as error:
        return error
    return None


def in_thread(call):
    """Run `call` in a thread; `.result(seconds)` gives what it returned, or raises."""
    outcome = SimpleNamespace(value=None, error=None)

    def run():
        try:
            outcome.value = call()
        except BaseException as error:
            outcome.error = error

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def result(seconds=60):
        thread.join(seconds)
        assert not thread.is_alive(), "it still waits"
        if outcome.error is not None:
            raise outcome.error
        return outcome.value

    return SimpleNamespace(result=result, waits=lambda: _waits(thread))


def _waits(thread):
    """Whether the thread comes to a place where it waits, and is there a moment later."""
    wait_until(lambda: is_waiting(thread) or not thread.is_alive())
    thread.join(0.02)
    return thread.is_alive()
