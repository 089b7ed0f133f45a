"""Numbers that were wrong once: each against what the same program gives without servers."""

import gc
import weakref

import keras
import numpy as np
import pytest

import replicax as rx
from replicax._core.errors import UnavailableError, UsageError
from replicax._net import RemoteError

from helpers import wait_until

Fixed = rx.experimental.partitioners.FixedShardsPartitioner


def coordinator_of(strategy):
    return rx.coordinator.ClusterCoordinator(strategy)


def test_what_is_scheduled_after_a_fetch_sees_what_was_fetched(started):
    strategy = started(servers=1)
    with strategy.scope():
        v = keras.Variable(0)
    count = rx.function(lambda: v.assign_add(1))
    coordinator = coordinator_of(strategy)
    for number in range(20):
        pair = [coordinator.schedule(count), coordinator.schedule(count)]
        assert all(int(value.fetch()) > 3 * number for value in pair)
        assert int(coordinator.schedule(count).fetch()) == 3 * number + 3


def test_arguments_are_those_of_the_call(started):
    strategy = started(servers=1)
    total = rx.function(lambda x: x.sum())
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


def test_a_sum_travels_only_where_nothing_but_adding_was_done(started):
    strategy = started(servers=1)
    with strategy.scope():
        variables = [keras.Variable(10.0) for _ in range(6)]
    a, b, c, d, e, f = variables

    @rx.function
    def change():
        a.assign_add(2.0)
        a.assign_sub(1.0)
        b.assign(5.0)
        b.assign_add(1.0)
        c.assign_add(1.0)
        c.assign(3.0)

        def nested():
            d.assign_add(1.0)
            e.assign(5.0)
            e.assign_add(1.0)
            return f * 2.0

        rx.value_and_grad(nested, [f])()
        d.assign_add(1.0)

    program = strategy.coordination.tracer.task(change, (), {}).family.usual
    assert [kind for _, kind, _ in program.meta["writes"]] == ["add", "set", "set", "add", "set"]
    coordinator = coordinator_of(strategy)
    coordinator.schedule(change)
    coordinator.join()
    assert [float(v.value) for v in variables] == [11, 6, 3, 12, 6, 10]


def test_a_step_is_not_undone_by_a_value_from_before_it(started):
    strategy = started(servers=1)
    with strategy.scope():
        v, optimizer = keras.Variable(10.0), keras.optimizers.SGD(1.0)

    @rx.function
    def step():
        optimizer.apply([np.float32(1.0)], [v])
        v.assign(keras.ops.clip(v, 0.0, 100.0))

    with pytest.raises(UsageError, match="`constraint`"):
        coordinator_of(strategy).schedule(step)


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype")
@pytest.mark.parametrize("dtype", ["int64", "float64", "float16", "bfloat16"])
def test_variables_of_any_type_travel(started, dtype):
    strategy = started(servers=1)
    with strategy.scope():
        v = keras.Variable(np.arange(3), dtype=dtype)

    @rx.function
    def change():
        v.assign_add(keras.ops.ones(3, dtype))
        return v.value

    found = coordinator_of(strategy).schedule(change).fetch()
    assert found.tolist() == v.numpy().tolist() == [1, 2, 3]


def test_what_a_layer_adds_is_of_the_type_that_is_stored(started):
    strategy = started(servers=1)

    class Counting(keras.layers.Layer):
        def __init__(self):
            super().__init__(dtype="mixed_bfloat16")
            self.count = self.add_weight(shape=(), initializer="zeros", trainable=False)

        def call(self, x):
            self.count.assign_add(1.0)
            return x

    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), Counting()])
        model.compile(loss="mse")
    model.evaluate(np.ones((4, 2)), np.ones((4, 2)), batch_size=2, verbose=0)
    assert float(model.layers[0].count.value) == 2


@pytest.mark.parametrize(
    "make",
    [
        lambda: keras.optimizers.SGD(0.1, use_ema=True),
        lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2),
        lambda: keras.optimizers.Lamb(0.1),
    ],
)
def test_a_table_is_not_trained_by_what_looks_at_all_rows(started, make):
    strategy = started(servers=1)
    with strategy.scope():
        table, optimizer = keras.Variable(np.ones((4, 2), "float32")), make()

    @rx.function
    def step(ids):
        total = lambda: rx.nn.embedding_lookup(table, ids).sum()  # noqa: E731
        _, gradient = rx.value_and_grad(total, [table])()
        optimizer.apply(gradient, [table])

    with pytest.raises(UsageError, match="by rows with"):
        coordinator_of(strategy).schedule(step, args=(np.array([0, 1], "int32"),))


def test_two_optimizers_do_not_share_what_they_keep(started):
    strategy = started(servers=1)
    with strategy.scope():
        v = keras.Variable(1.0)
        first, second = keras.optimizers.SGD(0.1, momentum=0.9), keras.optimizers.RMSprop(0.1)

    @rx.function
    def step(times):
        first.apply([times], [v])

    @rx.function
    def other():
        second.apply([np.float32(1.0)], [v])

    coordinator = coordinator_of(strategy)
    for fn, args in [(step, (np.float32(1),)), (other, ())]:
        coordinator.schedule(fn, args=args)
        coordinator.join()
    value = float(v.value)
    coordinator.schedule(step, args=(np.float32(1),))  # its program is there already
    with pytest.raises(RemoteError, match="with one optimizer"):
        coordinator.join()
    with pytest.raises(UsageError, match="Another optimizer has taken over"):
        coordinator.schedule(step, args=(np.ones((), "float64"),))
    assert float(v.value) == value


def test_a_strategy_that_is_dropped_is_not_kept_by_its_last_closure():
    strategy = rx.ParameterServerStrategy(engine="threads", num_workers=1, num_ps=1)
    engine = strategy.coordination.engine
    coordinator_of(strategy).schedule(rx.function(lambda: np.float32(1.0))).fetch()
    coordinator_of(strategy).join()
    there = weakref.ref(strategy)
    del strategy
    wait_until(lambda: gc.collect() >= 0 and there() is None)
    engine.client.close()
    engine.cluster.close()


def test_a_strategy_that_is_dropped_is_not_kept_by_a_model_that_it_fitted():
    strategy = rx.ParameterServerStrategy(engine="threads", num_workers=1, num_ps=1)
    engine = strategy.coordination.engine
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.fit(np.ones((8, 2), "float32"), np.ones((8, 1), "float32"), verbose=0)
    there = weakref.ref(strategy)
    del strategy, model
    wait_until(lambda: gc.collect() >= 0 and there() is None)
    engine.client.close()
    engine.cluster.close()


class Halving(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule that Keras has not been told of."""

    def __call__(self, step):
        return 0.5 ** keras.ops.cast(step, "float32")

    def get_config(self):
        return {}


@pytest.mark.filterwarnings("ignore:The object being serialized includes a `lambda`")
@pytest.mark.parametrize(("rate", "expected"), [(Halving(), -1.5), (lambda: 0.25, -0.5)])
def test_a_learning_rate_may_be_of_the_program(started, rate, expected):
    strategy = started(servers=1)
    with strategy.scope():
        v, optimizer = keras.Variable(0.0), keras.optimizers.SGD(rate)

    @rx.function
    def step():
        optimizer.apply([np.float32(1.0)], [v])

    coordinator = coordinator_of(strategy)
    for _ in range(2):
        coordinator.schedule(step)
    coordinator.join()
    assert float(v.value) == expected


def test_what_the_coordinator_adds_loses_nothing_that_workers_add(started):
    strategy = started(Fixed(2), servers=2)
    with strategy.scope():
        v, table = keras.Variable(0.0), keras.Variable(np.zeros((3, 2), "float32"))

    @rx.function
    def count():
        v.assign_add(1.0)
        table.assign_add(keras.ops.ones((3, 2)))

    coordinator = coordinator_of(strategy)
    for _ in range(40):
        coordinator.schedule(count)
    for _ in range(10):
        v.assign_add(2.0)
        v.assign_sub(1.0)
        table.assign_add([1.0, 2.0])
    coordinator.join()
    assert float(v.value) == 50
    assert table.numpy().tolist() == [[50, 60]] * 3


def test_two_steps_in_one_closure_are_told_of(started, caplog):
    strategy = started(servers=1)
    with strategy.scope():
        v, optimizer = keras.Variable(1.0), keras.optimizers.SGD(0.1)

    @rx.function
    def steps():
        for _ in range(2):
            _, gradient = rx.value_and_grad(lambda: v * v, [v])()
            optimizer.apply(gradient, [v])

    coordinator_of(strategy).schedule(steps)
    coordinator_of(strategy).join()
    told = [record for record in caplog.records if "to optimizers twice" in record.getMessage()]
    assert len(told) == 1


def test_a_closure_may_take_many_batches(started):
    coordinator = coordinator_of(started(servers=1))
    numbers = iter(coordinator.create_per_worker_dataset(lambda: rx.data.Dataset.range(100)))
    total = rx.function(lambda numbers: sum(next(numbers) for _ in range(34)))
    assert int(coordinator.schedule(total, args=(numbers,)).fetch()) == sum(range(34))


def test_a_layer_knows_variables_that_it_has_as_attributes(started):
    class Scale(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.by = keras.Variable(2.0)

        def call(self, x):
            return x * self.by

    with started(servers=1).scope():
        layer = Scale()
        optimizer = keras.optimizers.Nadam(0.1)  # which has one, too
        optimizer.build([layer.by])
    assert isinstance(layer.by, keras.Variable)
    assert [v is layer.by for v in layer.trainable_variables] == [True]
    assert len(optimizer.variables) == 5


def test_there_is_no_value_after_the_end(started):
    strategy = started(servers=1)
    with strategy.scope():
        v = keras.Variable(2.0)
    strategy.close()
    with pytest.raises(UnavailableError, match="strategy is closed"):
        v.numpy()
