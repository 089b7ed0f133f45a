"""Numbers that were wrong once: each against what the same program gives without servers."""

from __future__ import annotations

import keras
import numpy as np

import replicax as rx

Fixed = rx.experimental.partitioners.FixedShardsPartitioner


def coordinator_of(strategy):
    return rx.coordinator.ClusterCoordinator(strategy)


def test_a_bound_of_staleness_holds_for_values_that_are_pulled_ahead(started):
    strategy = started(servers=1, max_staleness=0)
    with strategy.scope():
        v, optimizer = keras.Variable(1.0), keras.optimizers.SGD(0.1)

    @rx.function
    def step():
        _, gradient = rx.value_and_grad(lambda: v * v, [v])()
        optimizer.apply(gradient, [v])

    coordinator = coordinator_of(strategy)
    for _ in range(10):
        coordinator.schedule(step)
    coordinator.join()
    np.testing.assert_allclose(float(v.value), 0.8**10, rtol=1e-5)


def test_what_is_scheduled_after_a_fetch_sees_what_was_fetched(started):
    strategy = started(servers=1)
    with strategy.scope():
        v = keras.Variable(0)

    @rx.function
    def count():
        return v.assign_add(1)

    coordinator = coordinator_of(strategy)
    for number in range(20):
        pair = [coordinator.schedule(count), coordinator.schedule(count)]
        assert all(int(value.fetch()) > 3 * number for value in pair)
        assert int(coordinator.schedule(count).fetch()) == 3 * number + 3


def test_arguments_are_those_of_the_call(started):
    strategy = started(servers=1)

    @rx.function
    def total(x):
        return x.sum()

    coordinator, buffer, values = coordinator_of(strategy), np.zeros(4, "float32"), []
    for number in range(10):
        buffer[:] = number
        per_worker = rx.coordinator.PerWorkerValues([buffer])
        values += [
            coordinator.schedule(total, args=(buffer,)),
            coordinator.schedule(total, args=(per_worker,)),
        ]
    buffer[:] = -1
    assert coordinator.fetch(values) == [4.0 * (number // 2) for number in range(20)]


def test_equal_shards_on_one_server_have_slots_of_their_own(started):
    strategy = started(Fixed(2), servers=1)
    with strategy.scope():
        table = keras.Variable(np.ones((4, 2), "float32"))
        optimizer = keras.optimizers.Adagrad(1.0)

    @rx.function
    def step(ids):
        total = lambda: rx.nn.embedding_lookup(table, ids).sum()  # noqa: E731
        _, gradient = rx.value_and_grad(total, [table])()
        optimizer.apply(gradient, [table])

    coordinator = coordinator_of(strategy)
    for row in (0, 2, 0, 2):
        coordinator.schedule(step, args=(np.array([row], "int32"),))
    coordinator.join()
    rows = table.numpy()
    assert rows[1:4:2].tolist() == [[1, 1], [1, 1]]
    assert rows[0].tolist() == rows[2].tolist()
