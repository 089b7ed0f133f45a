"""Workers and servers die at random: each closure ends exactly once or is cancelled."""

import random
import threading
import time

import pytest

from replicax._core.errors import CancelledError, CoordinatorError, UnavailableError
from replicax._ps.queue.closures import Closure, ClosureQueue
from replicax._ps.queue.lanes import Lanes, ServerGone, StalenessGate, WorkerGone
from replicax._ps.queue.remote_value import RemoteValueStatus

from lane_fakes import lane_threads, raised


class Chaos:
    """Lanes that fail as a seed has it."""

    def __init__(self, seed, *, forever):
        self.lock = threading.Lock()
        self.random = random.Random(seed)
        self.forever = forever
        self.restoring = set()
        self.recovering = set()
        self.ran = {}  # how often each closure has run to its end

    def draw(self):
        with self.lock:
            return self.random.random()


class ChaoticLane:
    def __init__(self, worker, chaos):
        self.worker = worker
        self.chaos = chaos
        self.closed = False

    def run(self, closure, *, more):
        draw = self.chaos.draw()
        time.sleep(draw * 1e-3)
        if self.closed or draw < 0.1:
            raise WorkerGone(self.worker, started=draw < 0.03)
        if draw < 0.13:
            raise ServerGone(int(draw * 1000) % 2)
        with self.chaos.lock:
            self.chaos.ran[closure.id] = self.chaos.ran.get(closure.id, 0) + 1
        if draw < 0.16:  # it has run, but nobody hears of it
            raise WorkerGone(self.worker)
        if draw < closure.task:
            raise ValueError(closure.id)
        return closure.id

    def recover(self):
        assert self.worker not in self.chaos.recovering, "two lanes get one worker back"
        self.chaos.recovering.add(self.worker)
        draw = self.chaos.draw()
        time.sleep(draw * 1e-3)
        self.chaos.recovering.discard(self.worker)
        if draw < 0.3:
            raise WorkerGone(self.worker)
        if draw < 0.4:
            raise ServerGone(0)
        if draw < 0.4 + self.chaos.forever:
            raise UnavailableError("never")

    def close(self):
        self.closed = True


def begin(chaos, queue, *, workers, bound):
    def restore(server):
        assert server not in chaos.restoring, "two lanes restore one server"
        chaos.restoring.add(server)
        time.sleep(chaos.draw() * 1e-3)
        chaos.restoring.discard(server)

    lanes = Lanes(queue, on_server_gone=restore, gate=StalenessGate(bound))
    lanes.add([ChaoticLane(worker, chaos) for worker in range(workers) for _ in range(2)])
    return lanes


@pytest.mark.parametrize("seed", range(4))
def test_all_closures_run_although_workers_die(seed):
    chaos, queue = Chaos(seed, forever=0.0), ClosureQueue(capacity=20, max_deaths=99)
    lanes = begin(chaos, queue, workers=3, bound=[None, 0, 3, 5][seed])
    closures = [Closure(i, 0.0) for i in range(60)]
    for closure in closures:
        queue.put(closure)
    assert queue.wait()
    assert [closure.value.fetch() for closure in closures] == list(range(60))
    assert all(chaos.ran[closure.id] >= 1 for closure in closures)
    lanes.close()
    assert lane_threads() == []


@pytest.mark.parametrize("seed", range(6))
def test_each_closure_ends_in_one_way_although_all_goes_wrong(seed):
    chaos, queue = Chaos(seed, forever=0.05), ClosureQueue(capacity=10)
    lanes = begin(chaos, queue, workers=3, bound=None if seed % 2 else 2)
    scheduled, errors, refused, joined = [], 0, 0, 3
    for i in range(80):
        closure = Closure(i, 0.18)
        error = raised(lambda closure=closure: queue.put(closure))
        if error is None:
            scheduled.append(closure)
        else:
            assert isinstance(error, ValueError | UnavailableError | CoordinatorError)
            assert closure.value.state is RemoteValueStatus.NOT_READY
            refused += 1
            if "at least one worker" in str(error):
                lanes.add([ChaoticLane(joined, chaos)])
                joined += 1
        if i % 20 == 19:
            errors += raised(queue.wait) is not None
            assert all(c.value.state is not RemoteValueStatus.NOT_READY for c in scheduled)
    for closure in scheduled:
        error = raised(closure.value.fetch)
        if error is None:
            assert closure.value.fetch() == closure.id
            assert chaos.ran[closure.id] >= 1
        else:
            assert isinstance(error, ValueError | CancelledError | CoordinatorError)
    assert len(scheduled) + refused == 80
    lanes.close()
    assert lane_threads() == []
