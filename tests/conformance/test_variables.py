"""Variables of a strategy: where they live, and what a write from several replicas means."""

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx

from helpers import (
    assert_trees_close,
    batch_of,
    device_names,
    few_strategies,
    local,
    run_python,
    three_strategies,
    two_replicas,
)


def replica_id():
    return rx.get_replica_context().replica_id_in_sync_group


def variable(strategy, value, **options):
    with strategy.scope():
        return keras.Variable(value, **options)


def sum_of_numbers(strategy):
    """1 + 2 + … + the number of replicas."""
    return sum(range(1, strategy.num_replicas_in_sync + 1))


@pytest.mark.parametrize(
    ("aggregation", "synchronization"),
    [
        *((aggregation, "auto") for aggregation in ("none", "mean", "sum", "only_first_replica")),
        *((aggregation, "on_read") for aggregation in ("mean", "sum", "only_first_replica")),
    ],
)
def test_a_write_in_the_scope_is_stored(strategy, aggregation, synchronization):
    # Pair 88: cross-replica assign(7) on a SUM variable; no aggregation outside `run`. Pair 91:
    # there assign_add on SUM is an error; the stored value is the reduced one here, so it adds.
    v = variable(strategy, 1.0, aggregation=aggregation, synchronization=synchronization)
    with strategy.scope():
        v.assign(7.0)
        assert float(v.value) == 7.0
        v.assign_add(1.0)
    v.assign_sub(2.0)
    assert float(v.value) == 6.0


@few_strategies
@pytest.mark.parametrize(
    ("aggregation", "combined"),
    [("mean", np.mean), ("sum", np.sum), ("only_first_replica", lambda values: values[0])],
)
def test_increments_start_from_the_stored_value(strategy, aggregation, combined):
    v = variable(strategy, 10.0, aggregation=aggregation)
    for _ in range(2):
        strategy.run(lambda: v.assign_sub(1.0 + replica_id()))
    increments = 1.0 + np.arange(strategy.num_replicas_in_sync)
    assert float(v.value) == 10.0 - 2 * float(combined(increments))


def test_different_values_need_an_aggregation(strategy):
    # Pair 101 and section 0: an error that names the variable, where Mirrored diverged silently.
    v = variable(strategy, 1.0, name="counter")

    def replica_fn():
        v.assign(1.0 + replica_id())

    if strategy.num_replicas_in_sync == 1:
        strategy.run(replica_fn)
        assert float(v.value) == 1.0
        return
    message = "variable 'counter'"
    with pytest.raises(rx.errors.VariableNotReduced, match=message):
        strategy.run(replica_fn)
    assert float(v.value) == 1.0


def test_equal_values_need_no_aggregation(strategy):
    v = variable(strategy, 1.0)

    def replica_fn():
        v.assign(rx.get_replica_context().all_reduce("SUM", 1.0 + replica_id()))

    strategy.run(replica_fn)
    assert float(v.value) == sum_of_numbers(strategy)


@pytest.mark.parametrize("aggregation", ["none", "mean", "only_first_replica"])
def test_a_python_number_is_stored_as_it_is(strategy, aggregation):
    v = variable(strategy, 1.0, aggregation=aggregation)
    strategy.run(lambda: v.assign(5.0))
    assert float(v.value) == 5.0


@pytest.mark.parametrize("number", [5.0, np.float32(5.0)], ids=["python", "numpy"])
def test_every_replicas_number_enters_a_sum(strategy, number):
    # Pair 88 says an error for a Python number and 10 for a fresh tensor; here both are summed.
    v = variable(strategy, 1.0, aggregation="sum")
    strategy.run(lambda: v.assign(number))
    assert float(v.value) == 5.0 * strategy.num_replicas_in_sync


def test_extended_update_stores_what_it_assigns(strategy):
    # Pair 92 reads 10 there, as pair 91 does.
    v = variable(strategy, 1.0, aggregation="sum", synchronization="on_read")
    with strategy.scope():
        strategy.extended.update(v, lambda var: var.assign(5.0))
    assert float(v.value) == 5.0


def test_a_replica_reads_its_own_pending_value(strategy):
    # Pair 100: ON_READ MEAN assigned the id: v + 1 is id + 1 inside, and mean + 1 outside.
    v = variable(strategy, 9.0, aggregation="mean", synchronization="on_read")

    def replica_fn():
        v.assign(1.0 * replica_id())
        return v + 1.0

    inside = strategy.run(replica_fn)
    replicas = strategy.num_replicas_in_sync
    assert local(strategy, inside) == [r + 1.0 for r in range(replicas)]
    assert float(v + 1.0) == (replicas - 1) / 2 + 1.0


def test_several_writes_of_one_step_are_settled_once(strategy):
    v = variable(strategy, 1.0, aggregation="sum")

    def replica_fn():
        v.assign_add(1.0)
        v.assign_add(2.0 * replica_id())

    strategy.run(replica_fn)
    replicas = strategy.num_replicas_in_sync
    assert float(v.value) == 1.0 + replicas + replicas * (replicas - 1)


@pytest.mark.parametrize("dtype", ["int32", "uint8"])
def test_integers_are_summed_exactly(strategy, dtype):
    v = variable(strategy, 17, dtype=dtype, aggregation="sum")
    strategy.run(lambda: v.assign_sub(jnp.ones((), dtype)))
    assert int(v.value) == 17 - strategy.num_replicas_in_sync
    assert v.value.dtype == dtype


@three_strategies
def test_an_unknown_aggregation_is_refused(strategy):
    # Pair 97; by Keras.
    with pytest.raises(ValueError, match="`aggregation`"):
        variable(strategy, 1.0, aggregation="invalid")


def test_variables_live_where_the_strategy_keeps_them(strategy):
    v = variable(strategy, np.arange(4.0))
    names = device_names(v.value)
    assert sorted(names) == sorted(strategy.extended.parameter_devices)
    v.assign(np.zeros(4))
    assert device_names(v.value) == names
    strategy.run(lambda: v.assign_add(np.ones(4)))
    assert device_names(v.value) == names


def test_a_random_initial_value_is_equal_everywhere(strategy):
    # Pair 98.
    with strategy.scope():
        layer = keras.layers.Dense(3)
        layer.build((None, 4))
    copies = [np.asarray(shard.data) for shard in layer.kernel.value.addressable_shards]
    for copy in copies:
        np.testing.assert_array_equal(copy, copies[0])


def test_a_variable_made_outside_every_scope_is_adopted(strategy):
    v = keras.Variable(1.0, aggregation="sum")
    strategy.run(lambda: v.assign_add(1.0 + replica_id()))
    assert float(v.value) == 1.0 + sum_of_numbers(strategy)
    assert device_names(v.value) == device_names(variable(strategy, 0.0).value)
    if strategy is not rx.get_strategy():  # which adopts nothing
        assert strategy.extended.variable_created_in_scope(v)


@three_strategies
@pytest.mark.parametrize("given", ["adopted", "initial", "assigned", "numpy"])
def test_the_array_that_a_variable_was_given_is_left_alone(strategy, given):
    array = np.ones(512, "float32") if given == "numpy" else jnp.ones(512)
    if given == "adopted":
        v = keras.Variable(array)
    else:
        v = variable(strategy, array if given == "initial" else np.zeros(512, "float32"))
        v.assign(array)
    for _ in range(3):
        strategy.run(lambda: v.assign_add(np.ones(512, "float32")))
    np.testing.assert_array_equal(np.asarray(array), np.ones(512))
    np.testing.assert_array_equal(np.asarray(v.value), np.full(512, 4.0))


@three_strategies
@pytest.mark.parametrize("hold", ["array", "numpy", "memoryview", "result", "shard"])
def test_an_old_value_stays_readable(strategy, hold):
    # Steps reuse the memory of the variables they write; not while someone looks at it.
    v = variable(strategy, np.ones(512, "float32"))
    holders = {
        "array": lambda: v.value,
        "numpy": lambda: np.asarray(v.value),
        "memoryview": lambda: memoryview(np.asarray(v.value)),
        "result": lambda: strategy.run(lambda: v.value),
        "shard": lambda: v.value.addressable_shards[0].data,
    }
    old = holders[hold]()
    for _ in range(3):
        strategy.run(lambda: v.assign_add(np.ones(512, "float32")))
    np.testing.assert_array_equal(np.asarray(old), np.ones(512))
    np.testing.assert_array_equal(np.asarray(v.value), np.full(512, 4.0))


def test_returned_values_stay_as_they_were(strategy):
    v = variable(strategy, np.zeros(512, "float32"))

    def step():
        v.assign_add(np.ones(512, "float32"))
        return v.value

    results = [strategy.run(step) for _ in range(4)]
    for count, result in enumerate(results, 1):
        np.testing.assert_array_equal(local(strategy, result)[-1], np.full(512, float(count)))


def test_two_variables_may_be_given_one_array():
    # In a process of its own: XLA ends the process when it is given one buffer twice.
    program = """
        import replicax as rx
        import keras
        import jax.numpy as jnp

        strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        array = jnp.ones(4)
        with strategy.scope():
            first, second = keras.Variable(array), keras.Variable(array)

        def step():
            first.assign_add(jnp.ones(4))
            second.assign_sub(jnp.ones(4))

        strategy.run(step)
        strategy.run(step)
        print(first.value.tolist(), second.value.tolist())
    """
    assert run_python(program) == "[3.0, 3.0, 3.0, 3.0] [-1.0, -1.0, -1.0, -1.0]\n"


def test_two_variables_may_be_given_one_value_inside(strategy):
    first = variable(strategy, np.zeros(8, "float32"))
    second = variable(strategy, np.zeros(8, "float32"))

    def step(x):
        first.assign(first + x)
        second.assign(first)

    for _ in range(3):
        strategy.run(step, args=(np.float32(1.0),))
    assert_trees_close((first.value, second.value), (np.full(8, 3.0), np.full(8, 3.0)))


def test_a_variable_may_be_made_in_the_first_step(strategy):
    made = []

    def step():
        if not made:
            made.append(keras.Variable("ones", shape=(2,), aggregation="sum"))
        made[0].assign_add(jnp.ones(2))

    for _ in range(2):
        strategy.run(step)
    assert len(made) == 1
    assert_trees_close(made[0].value, np.full(2, 1.0 + 2 * strategy.num_replicas_in_sync))
    assert made[0].value.devices() == variable(strategy, 0.0).value.devices()


def test_a_variable_is_read_by_every_replica(strategy):
    v = variable(strategy, 3.0)
    result = strategy.run(lambda: v * (1.0 + replica_id()))
    assert local(strategy, result) == [3.0 * (r + 1) for r in range(strategy.num_replicas_in_sync)]


@few_strategies
def test_a_conditional_update_happens_or_not(strategy):
    v = variable(strategy, 0.0)

    def step(limit):
        total = rx.get_replica_context().all_reduce("SUM", jnp.float32(1.0))
        v.assign(jax.lax.cond(v.value < limit, lambda: v.value + total, lambda: v.value))

    for _ in range(4):
        strategy.run(step, args=(np.float32(2 * strategy.num_replicas_in_sync),))
    assert float(v.value) == 2.0 * strategy.num_replicas_in_sync


@few_strategies
def test_a_sum_may_be_reduced_inside_the_condition(strategy):
    # The predicate is equal on all replicas and so is the outcome of either branch.
    v = variable(strategy, 0.0)

    def step(x):
        context = rx.get_replica_context()
        total = jnp.sum(x)
        v.assign(
            jax.lax.cond(
                v.value < 10.0, lambda: v.value + context.all_reduce("SUM", total), lambda: v.value
            )
        )

    batch = batch_of(strategy, np.ones(12, "float32"))
    for _ in range(2):
        strategy.run(step, args=(batch,))
    assert float(v.value) == 12.0


def test_a_condition_that_differs_per_replica_needs_an_aggregation(mirrored):
    v = variable(mirrored, 0.0)

    def step():
        v.assign(jax.lax.cond(replica_id() == 0, lambda: 1.0, lambda: 2.0))

    with pytest.raises(rx.errors.VariableNotReduced, match="aggregation='none'"):
        mirrored.run(step)


@two_replicas
def test_an_argument_without_rows_is_no_empty_batch(strategy):
    v = variable(strategy, 0.0, aggregation="mean")
    batch = batch_of(strategy, np.array([3.0, 3.0, 6.0]))
    # The means are 3 and 6; the second argument has nothing to do with the batch.
    strategy.run(lambda x, _: v.assign(jnp.mean(x)), args=(batch, np.zeros((0, 2))))
    assert float(v.value) == 4.5


@two_replicas
def test_constants_are_equal_on_uneven_replicas(strategy):
    first, second = variable(strategy, [0.0, 0.0]), variable(strategy, [0.0, 0.0])

    def step(x):
        first.assign(jnp.array([1.0, 2.0]))
        second.assign(second + np.array([3.0, 4.0]))

    for _ in range(2):
        strategy.run(step, args=(batch_of(strategy, np.zeros(9, "float32")),))
    assert first.value.tolist() == [1.0, 2.0]
    assert second.value.tolist() == [6.0, 8.0]
