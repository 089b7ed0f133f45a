"""`ClusterCoordinator` on the real strategy: pairs of the semantics' list E.

Its rules alone, without servers and workers, are in unit/coordinator: among them pairs 103 and 109.
"""

import logging

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
import replicax.tf as tf
from replicax._core.errors import (
    CancelledError,
    ClosureInputError,
    OutOfRangeError,
    UnavailableError,
    UsageError,
)

from helpers import wait_until

worker_index = rx.coordinator.experimental_get_current_worker_index


@pytest.fixture(scope="module")
def strategy():
    """Two servers and two workers, for all tests that kill none."""
    strategy = rx.ParameterServerStrategy(engine="threads", num_workers=2, num_ps=2)
    yield strategy
    strategy.close()


@pytest.fixture
def coordinator(strategy):
    coordinator = rx.coordinator.ClusterCoordinator(strategy)
    yield coordinator
    coordinator.join()  # a test leaves no error behind


@pytest.fixture(scope="module")
def table(strategy):
    with strategy.scope():
        return keras.Variable(np.arange(4.0), dtype="float32")


@pytest.fixture(scope="module")
def pick(table):
    """A function that fails where it is given no row of the table."""
    return rx.function(lambda row: rx.nn.embedding_lookup(table, row))


@rx.function
def plus_one(x):
    return x + 1


def row(number):
    return (np.array([number]),)


def test_a_strategy_says_what_it_has_and_where(strategy):
    has = "2 worker(s) and 2 parameter server(s) in threads of this process"
    assert repr(strategy) == f"<ParameterServerStrategy with {has}>"


def test_results_keep_their_structure(coordinator):  # 104
    @rx.function
    def nested(x):
        return x + 1, (x + 2, x + 3), [x + 4], {"v": x}, None, "text"

    for one in (1, np.float32(1)):
        value = coordinator.schedule(nested, args=(one,))
        expected = (2, (3, 4), [5], {"v": 1}, None, "text")
        assert coordinator.fetch(value) == value.fetch() == expected
        assert isinstance(value.get()[1], tuple)
    assert isinstance(value.get()[0], jnp.ndarray)
    assert type(value.fetch()[0]) is np.float32
    assert coordinator.fetch({"two": value, "kept": 7})["kept"] == 7


def test_a_function_is_traced_in_the_scope(strategy, coordinator):
    found = []

    @rx.function
    def one():
        found.append(rx.distribute.get_strategy())
        return jnp.ones(())

    assert float(coordinator.schedule(one).fetch()) == 1.0
    assert found and all(each is strategy for each in found)
    assert not rx.distribute.has_strategy()


def test_arguments_by_name_and_default(coordinator):
    weighted = rx.function(lambda x, *, by=2: x * by)
    values = [
        coordinator.schedule(weighted, (np.float32(3),)),
        coordinator.schedule(weighted, kwargs={"x": np.float32(3), "by": 5}),
    ]
    assert coordinator.fetch(values) == [6, 15]


def test_a_plain_function_is_refused(coordinator):  # 106
    def plain():
        return 1

    with pytest.raises(TypeError, match=r"plain'.*Decorate it with `@rx\.function`"):
        coordinator.schedule(plain)


def test_the_result_of_another_function_is_no_argument(coordinator):  # 106
    value = coordinator.schedule(plus_one, args=(np.float32(1),))
    for arguments in ({"args": (value,)}, {"kwargs": {"x": [value]}}):
        with pytest.raises(ValueError, match=r"a RemoteValue.*`fetch` on it first"):
            coordinator.schedule(plus_one, **arguments)


def test_the_first_error_is_raised_once(coordinator, pick):  # 107
    for raise_it in (
        coordinator.join,
        lambda: wait_until(coordinator.done),
        lambda: coordinator.schedule(plus_one, args=(np.float32(1),)),
    ):
        good = [coordinator.schedule(pick, args=row(1)) for _ in range(2)]
        failed = coordinator.schedule(pick, args=row(9))
        with pytest.raises(UsageError, match="id 9 in table"):
            failed.fetch()  # its own error, as often as it is asked for
        with pytest.raises(UsageError, match="id 9 in table"):
            raise_it()
        coordinator.join()
        assert coordinator.done()
        assert coordinator.schedule(pick, args=row(1)).fetch().tolist() == [1]
        for value in good:
            with pytest.raises(UsageError, match="id 9 in table"):
                failed.fetch()
            assert finished_or_cancelled(value)


def finished_or_cancelled(value):
    try:
        return value.fetch().tolist() == [1]
    except CancelledError:
        return True


def test_each_worker_has_its_own_data(started):  # 110
    coordinator = rx.coordinator.ClusterCoordinator(started(workers=5))

    def dataset_fn():
        return rx.data.Dataset.range(10).shard(5, worker_index()).batch(2).repeat()

    data = iter(coordinator.create_per_worker_dataset(dataset_fn))

    @rx.function
    def total(data):
        return next(data).sum(), worker_index()

    found = {}
    for _ in range(100):
        values = [coordinator.schedule(total, args=(data,)) for _ in range(20)]
        found.update((int(worker), int(sum_)) for sum_, worker in coordinator.fetch(values))
        if len(found) == 5:
            break
    assert found == {0: 5, 1: 7, 2: 9, 3: 11, 4: 13}


def test_a_data_set_is_copied_for_each_worker(coordinator):  # 3.10
    data = iter(coordinator.create_per_worker_dataset(rx.data.Dataset.range(3).batch(1)))

    @rx.function
    def read(data):
        return worker_index(), next(data)[0]

    seen = {0: [], 1: []}
    with pytest.raises(OutOfRangeError, match="has no more batches"):
        for _ in range(7):  # six are there
            worker, element = coordinator.schedule(read, args=(data,)).fetch()
            seen[int(worker)].append(int(element))
    assert all(elements == list(range(len(elements))) for elements in seen.values())
    assert max(map(len, seen.values())) == 3
    with pytest.raises(OutOfRangeError, match="has no more batches"):
        coordinator.join()
    with pytest.raises(ValueError, match=r"`next` of a per-worker"):
        next(data)


@pytest.mark.parametrize("seed", [None, 7])
def test_each_worker_shuffles_by_itself(coordinator, seed):  # 112
    dataset = rx.data.Dataset.range(50).shuffle(50, seed).batch(50).repeat()
    data = iter(coordinator.create_per_worker_dataset(dataset))

    @rx.function
    def read(data):
        return worker_index(), next(data)

    orders = {}
    while len(orders) < 2:
        worker, order = coordinator.schedule(read, args=(data,)).fetch()
        assert sorted(order.tolist()) == list(range(50))
        orders.setdefault(int(worker), order.tolist())
    assert (orders[0] == orders[1]) == (seed is not None)


def test_a_data_set_function_makes_no_variables(coordinator):  # 112
    def dataset_fn():
        keras.layers.Normalization().build((None, 2))
        return rx.data.Dataset.range(4).batch(2)

    data = iter(coordinator.create_per_worker_dataset(dataset_fn))
    with pytest.raises(ValueError, match=r"variable '.*mean"):
        coordinator.schedule(first_of, args=(data,))


@rx.function
def first_of(data):
    return next(data)[0]


def test_data_that_cannot_be_made_fails_who_uses_it(coordinator):  # 112
    def dataset_fn():
        if made_before():
            raise OSError("no such disk")
        return rx.data.Dataset.range(4).batch(2)

    Disk.is_there = True
    data = iter(coordinator.create_per_worker_dataset(dataset_fn))
    coordinator.schedule(plus_one, args=(np.float32(1),))
    coordinator.join()  # nobody has used it
    value = coordinator.schedule(first_of, args=(data,))
    for wait in (value.fetch, coordinator.join):
        with pytest.raises(ClosureInputError, match=r"Worker .*OSError\('no such disk'\)"):
            wait()


class Disk:
    is_there = True


def made_before():
    """Whether the coordinator has looked at the data: workers find the disk gone."""
    there, Disk.is_there = Disk.is_there, False
    return not there


def test_variables_of_workers_add_up(strategy, coordinator):  # 113
    with strategy.scope():
        counters = [keras.Variable(0.0) for _ in range(2)]

    @rx.function
    def count(counter, by):
        counter.assign_add(by)
        return worker_index()

    mine = rx.coordinator.PerWorkerValues(iter(counters))
    by = rx.coordinator.PerWorkerValues([1.0, 10.0])
    workers = coordinator.fetch([coordinator.schedule(count, (mine, by)) for _ in range(10)])
    coordinator.join()
    assert [float(c.value) for c in counters] == [workers.count(0), 10.0 * workers.count(1)]


def test_a_component_for_each_worker_is_needed(coordinator):  # 113
    values = rx.coordinator.PerWorkerValues([np.float32(1)])
    for _ in range(100):
        value = coordinator.schedule(plus_one, args=(values,))
        try:
            assert value.fetch() == 2
        except UsageError as error:
            assert "worker 1, counted from 0: this per-worker value has 1" in str(error)
            break
    with pytest.raises(UsageError, match="worker 1, counted from 0: this per-worker value has 1"):
        coordinator.join()


def test_replicas_in_a_function(strategy, coordinator):  # 118
    with strategy.scope():
        one = keras.Variable(1.0)
        first = keras.Variable(0.0, aggregation="only_first_replica")
        total = keras.Variable(0.0, aggregation="sum")

    @rx.function
    def step(x):
        result = strategy.run(lambda x: x + one, args=(x,))
        return strategy.reduce("SUM", result, axis=None), result - 2 * one

    assert coordinator.schedule(step, args=(np.float32(3),)).fetch() == (4, 2)

    @rx.function
    def write():
        def replica():
            here = rx.get_replica_context()
            first.assign_add(3.0)
            total.assign(here.replica_id_in_sync_group + 1.0)
            return here.all_reduce("SUM", one.value), here.num_replicas_in_sync

        return strategy.run(replica)

    for _ in range(2):
        assert coordinator.schedule(write).fetch() == (1, 1)
    coordinator.join()
    assert (float(first.value), float(total.value)) == (6, 1)
    assert strategy.num_replicas_in_sync == 1


def test_a_step_may_be_written_for_run(strategy, coordinator):
    with strategy.scope():
        weights = keras.Variable(np.ones((2, 1), "float32"))
        steps = keras.Variable(0.0)
        optimizer = keras.optimizers.SGD(0.5)

    @rx.function
    def step(x):
        def replica(x):
            loss, grads = rx.value_and_grad(lambda: keras.ops.sum(x @ weights), [weights])()
            optimizer.apply(grads, [weights])
            steps.assign_add(1.0)
            return loss

        return strategy.reduce("SUM", strategy.run(replica, args=(x,)), axis=None)

    x = np.array([[1.0, 2.0], [3.0, 4.0]], "float32")
    assert float(coordinator.schedule(step, args=(x,)).fetch()) == 10
    for _ in range(9):
        coordinator.schedule(step, args=(x,))
    coordinator.join()
    # The gradient is the sum over rows, [4, 6]; ten steps of half of it.
    np.testing.assert_allclose(weights.numpy(), [[1 - 5 * 4], [1 - 5 * 6]])
    assert float(steps.value) == 10  # additions, of which none may get lost
    program = strategy.coordination.tracer.task(step, (x,), {}).family.usual
    assert [kind for _, kind, _ in program.meta["writes"]] == ["add"]


def test_run_outside_a_function_computes_here(started, caplog):  # 3.9
    strategy = started()
    with strategy.scope():
        variable = keras.Variable(1.0)

    def add(x):
        return variable.assign_add(x)

    with caplog.at_level(logging.WARNING, "replicax"):
        strategy.run(add, args=(2.0,))
        assert float(strategy.reduce("SUM", strategy.run(add, args=(3.0,)), axis=None)) == 6
    (said,) = caplog.messages
    assert "outside a scheduled function computes in the coordinator's process" in said
    assert float(variable.value) == 6
    caplog.clear()
    scheduled = rx.function(lambda: strategy.run(add, args=(1.0,)))
    assert rx.coordinator.ClusterCoordinator(strategy).schedule(scheduled).fetch() == 7
    assert not caplog.messages


def test_closures_that_follow_each_other_draw_other_numbers(strategy, coordinator):
    draw = rx.function(lambda: strategy.run(lambda: tf.random.uniform([2])))
    other = rx.function(lambda: tf.random.uniform([2]))
    drawn = []
    for closure in (draw, draw, other):
        value = coordinator.schedule(closure)
        coordinator.join()
        drawn += np.asarray(value.fetch()).tolist()
    assert len(set(drawn)) == 6


def test_printing_stays_behind_and_says_so(coordinator):
    with pytest.raises(UsageError, match="rx.print"):
        coordinator.schedule(rx.function(lambda x: tf.print(x)), args=(np.ones(2),))
        coordinator.join()


def test_no_other_strategy_has_a_coordinator(mirrored):
    with pytest.raises(UsageError, match="got MirroredStrategy"):
        rx.coordinator.ClusterCoordinator(mirrored)


def kill(strategy, role, index):
    strategy.coordination.engine.cluster.kill(role, index)


def test_a_value_outlives_its_worker(started):  # 115
    strategy = started()
    coordinator = rx.coordinator.ClusterCoordinator(strategy)
    value = coordinator.schedule(rx.function(lambda x: (x, -x)), args=(np.float32(1),))
    coordinator.join()
    kill(strategy, "worker", 0)
    assert value.fetch() == coordinator.fetch(value) == (1, -1)
    assert coordinator.schedule(plus_one, args=(np.float32(1),)).fetch() == 2  # it is back


def test_workers_die_and_each_update_is_made_once(started):  # 116
    strategy = started(workers=2)
    coordinator = rx.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        count, weight = keras.Variable(0.0), keras.Variable(0.0)
        optimizer = keras.optimizers.SGD(1.0)
    endless = rx.data.Dataset.range(1).batch(1).repeat()
    data = iter(coordinator.create_per_worker_dataset(endless))

    @rx.function
    def step(data):
        count.assign_add(1.0)
        optimizer.apply([next(data).sum() - 1.0], [weight])

    values = []
    for number in range(60):
        values.append(coordinator.schedule(step, args=(data,)))
        if number % 20 == 10:
            for value in values[: max(0, number - 12)]:  # none meets the workers' death twice
                value.fetch()
            kill(strategy, "worker", 0)
            kill(strategy, "worker", 1)
    coordinator.join()
    assert float(count.value) == 60
    assert float(weight.value) == 60
    assert int(optimizer.iterations.value) == 60


def test_a_server_that_comes_back_empty_is_unavailable(started):  # 116
    strategy = started(snapshot_seconds=None)
    coordinator = rx.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        count = keras.Variable(0.0)
    step = rx.function(lambda: count.assign_add(1.0))
    assert coordinator.schedule(step).fetch() == 1
    kill(strategy, "server", 0)
    value = coordinator.schedule(step)
    with pytest.raises(UnavailableError, match="Server 0 came back") as caught:
        coordinator.join()
    assert caught.value.task == "/job:ps/task:0"
    with pytest.raises((UnavailableError, CancelledError)):
        value.fetch()
