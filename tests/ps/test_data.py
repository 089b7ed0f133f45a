"""Data that workers read by themselves: shared out, each sample once; or a copy for each."""

import gc
import threading
from collections import Counter

import keras
import numpy as np
import pytest

import replicax as rx
from replicax._core.errors import ClosureInputError, DataError, OutOfRangeError, UsageError

from helpers import wait_until

Dataset = rx.data.Dataset


def visits(strategy, count):
    """A counter for each row, on the servers, and a step that counts a batch's."""
    with strategy.scope():
        seen = keras.Variable(np.zeros(count, "int32"), trainable=False)

    @rx.function
    def visit(batches):
        rows = next(batches)
        seen.assign_add(keras.ops.sum(keras.ops.one_hot(rows, count, dtype="int32"), 0))
        return rows

    return seen, visit


@rx.function
def take(batches):
    return next(batches)


def until_the_end(coordinator, step, batches):
    """What closures have given until one of them found no batch."""
    values = []
    with pytest.raises(OutOfRangeError, match="no more batches"):
        while True:
            values.append(coordinator.schedule(step, args=(batches,)))
    ready = [v for v in values if v.state is rx.coordinator.RemoteValueStatus.READY]
    return [value.fetch() for value in ready]


@pytest.mark.parametrize("max_staleness", [None, 0])
def test_each_sample_counts_once_in_an_epoch_although_workers_come_and_go(started, max_staleness):
    strategy = started(workers=3, max_staleness=max_staleness)
    coordinator = rx.coordinator.ClusterCoordinator(strategy)
    seen, visit = visits(strategy, 203)
    dataset = Dataset.range(203).shuffle(203).batch(4, drop_remainder=False)
    shared = coordinator.create_per_worker_dataset(dataset, shard="dynamic")
    orders = []
    for epoch in (1, 2):
        batches = iter(shared)
        values = []
        for number in range(len(shared)):
            if number == len(shared) // 2:
                values[number // 2].fetch()
                strategy.coordination.engine.cluster.kill("worker", epoch)
                if epoch == 1:
                    assert coordinator.add_worker() == 3
            values.append(coordinator.schedule(visit, args=(batches,)))
        coordinator.join()
        assert seen.numpy().tolist() == [epoch] * 203
        orders.append(sorted(value.fetch().tolist() for value in values))
    assert len(orders[0]) == 51 and orders[0] != orders[1]  # shuffled anew, for all workers


@pytest.mark.parametrize("max_staleness", [None, 0])
def test_an_epoch_of_unknown_length_ends_when_all_have_ended(started, max_staleness):
    strategy = started(workers=2, max_staleness=max_staleness)
    coordinator = rx.coordinator.ClusterCoordinator(strategy)
    seen, visit = visits(strategy, 60)
    dataset = Dataset.range(60).filter(lambda n: n % 3 > 0).batch(8)
    shared = coordinator.create_per_worker_dataset(dataset, shard="dynamic")
    with pytest.raises(TypeError, match="OutOfRangeError"):
        len(shared)
    for epoch in (1, 2):
        batches = iter(shared)
        strategy.coordination.engine.cluster.kill("worker", 1)
        until_the_end(coordinator, visit, batches)
        assert seen.numpy().tolist() == [0, epoch, epoch] * 20
    assert coordinator.done()


def test_files_are_shared_out(started, tmp_path):
    counts = [5, 1, 8, 3]
    for file, count in enumerate(counts):
        (tmp_path / f"{file}").write_text("".join(f"{file * 10 + n}\n" for n in range(count)))
    lines = rx.data.TextLineDataset([str(tmp_path / str(file)) for file in range(4)])
    coordinator = rx.coordinator.ClusterCoordinator(started(workers=2))
    dataset = lines.map(int).batch(2)
    batches = iter(coordinator.create_per_worker_dataset(dataset, shard="dynamic"))
    found = until_the_end(coordinator, take, batches)
    assert Counter(np.concatenate(found).tolist()) == Counter(
        file * 10 + n for file, count in enumerate(counts) for n in range(count)
    )


def test_another_program_goes_on_in_the_middle_of_an_epoch(started):
    def begun():
        coordinator = rx.coordinator.ClusterCoordinator(started(workers=2))
        dataset = Dataset.range(40).shuffle(40).batch(4)
        return coordinator, coordinator.create_per_worker_dataset(dataset, shard="dynamic")

    coordinator, shared = begun()
    batches = iter(shared)
    done = [coordinator.schedule(take, args=(batches,)) for _ in range(4)]
    coordinator.join()
    state = batches.get_state()
    coordinator, other = begun()
    batches = iter(other)
    batches.set_state(state)
    rest = [coordinator.schedule(take, args=(batches,)) for _ in range(6)]
    found = np.concatenate(coordinator.fetch(done) + coordinator.fetch(rest))
    assert sorted(found.tolist()) == list(range(40))
    assert iter(other).epoch == 1
    with pytest.raises(UsageError, match="num_splits"):
        batches.set_state({**state, "of": "Batch(Range)"})
    copies = iter(coordinator.create_per_worker_dataset(Dataset.range(3)))
    with pytest.raises(UsageError, match="shard='off'"):
        copies.get_state()


def test_each_worker_reads_a_copy_of_its_own(started):
    strategy = started(workers=2)
    coordinator = rx.coordinator.ClusterCoordinator(strategy)
    distributed = strategy.experimental_distribute_dataset(Dataset.range(12).batch(6))
    copies = coordinator.create_per_worker_dataset(distributed)
    one, two = iter(copies), iter(copies)
    assert len(coordinator.fetch(coordinator.schedule(take, args=(one,)))) == 6
    assert len(coordinator.fetch(coordinator.schedule(take, args=(two,)))) == 6
    with pytest.raises(TypeError, match="shard='off'"):
        len(copies)
    assert copies  # without asking for its length


def test_a_new_epoch_of_a_copy_is_shuffled_anew_and_needs_no_new_program(started):
    coordinator = rx.coordinator.ClusterCoordinator(started(workers=1))
    copies = coordinator.create_per_worker_dataset(Dataset.range(64).shuffle(64, seed=1).batch(64))
    orders = []
    for _ in range(2):
        batches = iter(copies)
        orders.append(coordinator.fetch(coordinator.schedule(take, args=(batches,))).tolist())
        with pytest.raises(OutOfRangeError, match="worker 0 has no more batches"):
            coordinator.fetch(coordinator.schedule(take, args=(batches,)))
        with pytest.raises(OutOfRangeError):
            coordinator.join()
    (local,) = Dataset.range(64).shuffle(64, seed=1).batch(64)
    assert orders[0] == local.tolist() != orders[1]


def test_data_sets_with_batches_alike_share_a_program(started):
    coordinator = rx.coordinator.ClusterCoordinator(started(workers=1))
    traces = []

    @rx.function
    def doubled(batches):
        rows = next(batches)  # a first trace ends here: it has found that there is a batch
        traces.append(rows.shape)
        return 2 * rows

    for first, size in [(0, 2), (10, 2), (20, 3)]:
        copies = coordinator.create_per_worker_dataset(Dataset.range(first, first + 6).batch(size))
        found = coordinator.fetch(coordinator.schedule(doubled, args=(iter(copies),)))
        assert found.tolist() == [2 * (first + row) for row in range(size)]
    assert traces == [(2,), (3,)]


def test_workers_let_go_of_what_nobody_can_use_any_more(started):
    strategy = started(workers=1)
    coordinator = rx.coordinator.ClusterCoordinator(strategy)
    batches = iter(coordinator.create_per_worker_dataset(Dataset.range(4)))
    coordinator.fetch(coordinator.schedule(take, args=(batches,)))
    unused = strategy.coordination.engine.unused
    assert unused == []
    del batches
    wait_until(lambda: gc.collect() >= 0 and len(unused) == 2)  # the iterator and its data set
    coordinator.fetch(coordinator.schedule(rx.function(lambda: 1)))


def test_what_goes_wrong_with_data_is_said(started):
    coordinator = rx.coordinator.ClusterCoordinator(started(workers=1))

    def fails_on_workers():
        if threading.current_thread() is not threading.main_thread():
            raise FileNotFoundError("elsewhere")
        return Dataset.range(4)

    def generated():
        yield 1

    with pytest.raises(UsageError, match="rx.data.Dataset"):
        coordinator.create_per_worker_dataset(generated, shard="dynamic")
    with pytest.raises(UsageError, match="Cannot send.*Type"):
        coordinator.create_per_worker_dataset(generated())
    with pytest.raises(OutOfRangeError, match="has no batches"):
        coordinator.schedule(take, args=(iter(coordinator.create_per_worker_dataset([])),))
    batches = iter(coordinator.create_per_worker_dataset(Dataset.range(4)))
    with pytest.raises(UsageError, match="`next`"):
        next(batches)
    bad = iter(coordinator.create_per_worker_dataset(fails_on_workers))
    with pytest.raises(ClosureInputError, match="cannot make the data set"):
        coordinator.fetch(coordinator.schedule(take, args=(bad,)))
    with pytest.raises(ClosureInputError):
        coordinator.join()
    broken = Dataset.range(4).map(lambda n: n if n < 1 else 1 / 0)
    batches = iter(coordinator.create_per_worker_dataset(broken))
    for _ in range(2):
        coordinator.schedule(take, args=(batches,))
    with pytest.raises(DataError, match="ZeroDivisionError"):
        coordinator.join()
