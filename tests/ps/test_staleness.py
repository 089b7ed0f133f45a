"""How late gradients are: measured by the servers, scaled, and bounded."""

import json
import subprocess
import sys
import time

import keras
import numpy as np
import pytest

import replicax as rx
from replicax._core.errors import UsageError
from replicax._ps.store.exchange import Traffic
from replicax._ps.store.servers import Client
from replicax._ps.worker import Worker

from helpers import TESTS, begun_threads


def histogram(strategy):
    """How many updates were how late, over all servers."""
    found = {}
    client = strategy.coordination.engine.client
    for stats in [client.call(server, "stats").head for server in range(client.num_servers)]:
        for late, count in stats["staleness"].items():
            found[int(late)] = found.get(int(late), 0) + count
    return found


def descent(strategy):
    """A weight, and a function that lowers it by one."""
    with strategy.scope():
        weight, optimizer = keras.Variable(10.0), keras.optimizers.SGD(1.0)

    @rx.function
    def step():
        optimizer.apply([weight * 0 + 1.0], [weight])

    return weight, step


def lanes(strategy, step, count):
    """Ways to the servers such as the lanes of workers have: one closure after the other each."""
    engine = strategy.coordination.engine
    program = strategy.coordination.task(step, (), {}).family.usual
    made = []
    for number in range(count):
        client = Client(engine.dial, engine.client.addresses)
        made.append((client, Traffic(program.digest, program.meta, client)))
        made[number][1].trip(number, outputs=None, pull=True)
    return made


@pytest.mark.parametrize(
    ("scaling", "lowered"),
    [
        (None, [1, 1, 1, 1]),
        ("inverse", [1, 1 / 2, 1 / 3, 1]),
        (lambda late: 0.5**late, [1, 1 / 2, 1 / 4, 1]),
    ],
)
def test_late_gradients_count_less(started, scaling, lowered):
    strategy = started(servers=1, staleness_scaling=scaling)
    weight, step = descent(strategy)
    (one, first), (two, second) = lanes(strategy, step, 2)
    gradient = [np.float32(1)]
    # Both have pulled. The second pushes late by one, and without a new pull by two; then it pulls.
    expected = 10.0
    for number, (lane, pull) in enumerate(
        [(first, True), (second, False), (second, True), (second, True)]
    ):
        lane.trip(10 + number, outputs=gradient, pull=pull)
        expected -= lowered[number]
        assert float(weight.value) == pytest.approx(expected)
    assert histogram(strategy) == {0: 2, 1: 1, 2: 1}
    # A closure that is pushed again, as after the death of a worker, changes nothing.
    second.trip(13, outputs=gradient, pull=False)
    assert float(weight.value) == pytest.approx(expected)
    assert histogram(strategy) == {0: 2, 1: 1, 2: 1}
    one.close()
    two.close()


@pytest.mark.parametrize("bound", [0, 2, None])
def test_staleness_is_bounded(started, bound):
    strategy = started(workers=2, max_staleness=bound)
    weight, step = descent(strategy)
    with strategy.scope():
        seen = keras.Variable(0.0)

    @rx.function
    def counted():
        step()
        seen.assign(seen + 1.0)  # a sum that loses whatever came between

    coordinator = rx.coordinator.ClusterCoordinator(strategy)
    for _ in range(80):
        coordinator.schedule(counted)
    coordinator.join()
    assert float(weight.value) == 10 - 80  # no gradient is lost
    found = histogram(strategy)
    assert sum(found.values()) == 80
    if bound is not None:
        assert max(found) <= bound
    if bound == 0:
        assert float(seen.value) == 80


@pytest.mark.parametrize("bound", [-1, True])
def test_a_bound_is_a_number_of_updates(started, bound):
    with pytest.raises(UsageError, match="`max_staleness`.*got "):
        started(max_staleness=bound)
    assert not begun_threads("replicax-listener")  # no member was started for it


@pytest.mark.parametrize("scaling", ["linear", 2])
def test_a_scaling_is_known_or_a_function(started, scaling):
    with pytest.raises(UsageError, match=r"`staleness_scaling`.*got "):
        started(staleness_scaling=scaling)


class Closures:
    """When closures ran: for each worker, from before they read variables to after they wrote."""

    def __init__(self):
        self.spans, self.ahead = {}, 0

    def watch(self, original):
        def closure(worker, lane, head, buffers):
            self.ahead += lane.ahead is not None
            start = time.monotonic()
            try:
                return original(worker, lane, head, buffers)
            finally:
                span = start, time.monotonic()
                self.spans.setdefault(worker.index, []).append(span)

        return closure

    def most_at_once(self, spans):
        ends = [(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans]
        count, most = 0, 0
        for _, change in sorted(ends):
            count += change
            most = max(most, count)
        return most


@pytest.mark.parametrize(("in_flight", "each"), [(None, 1), (2, 2)])
def test_a_worker_has_one_closure_in_flight_unless_more_are_wanted(
    started, monkeypatch, in_flight, each
):
    seen = Closures()
    monkeypatch.setattr(Worker, "_closure", seen.watch(Worker._closure))
    how = {} if in_flight is None else {"closures_in_flight": in_flight}
    strategy = started(workers=3, servers=2, **how)
    weight, step = descent(strategy)
    coordinator = rx.coordinator.ClusterCoordinator(strategy)
    for _ in range(90):
        coordinator.schedule(step)
    coordinator.join()
    assert float(weight.value) == 10.0 - 90
    spans = [span for own in seen.spans.values() for span in own]
    assert len(spans) == 90
    assert max(map(seen.most_at_once, seen.spans.values())) == each
    # So the update of a closure meets those of at most this many others that ran meanwhile.
    assert seen.most_at_once(spans) <= 3 * each
    assert (seen.ahead > 0) == (each > 1)


@pytest.mark.parametrize("wrong", [0, -1, True, 1.5, "2"])
def test_closures_in_flight_are_a_number(started, wrong):
    with pytest.raises(UsageError, match="closures_in_flight"):
        started(closures_in_flight=wrong)


def test_a_program_of_the_tutorials_shape_learns():  # `make faults` has a row with more seeds
    command = [sys.executable, str(TESTS / "ps" / "learning.py"), "1", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert json.loads(done.stdout.splitlines()[-1])["accuracies"][-1] == 1.0
