"""How long workers take for their closures."""

import contextlib

from replicax._ps.queue import lanes
from replicax._ps.queue.closures import Closure, ClosureQueue
from replicax._ps.queue.lanes import Work


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


def test_how_many_wait_or_run_when_another_one_comes():
    queue = ClosureQueue()
    for number in range(3):
        queue.put(Closure(number, None))
    queue.get(0)
    queue.put(Closure(3, None))
    # Before them were 0, 1, 2 and 3: one runs.
    assert queue.depths == (4, 6)
    queue.close()
