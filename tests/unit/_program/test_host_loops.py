"""Data inside `rx.function`: one element is an input, a loop runs as plain Python."""

import logging

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
from replicax._program.program import LRUCache, ProgramCache
from replicax.data import Dataset
from replicax.tf._flow.control_flow import map_fn, scan

from helpers import few_strategies


def numbers(count, batch=2):
    return Dataset.from_tensor_slices(np.arange(count, dtype="float32")).batch(batch)


def total_of(strategy, batch):
    sums = strategy.run(lambda rows: rows.sum(), args=(batch,))
    return strategy.reduce("SUM", sums, axis=None)


@few_strategies
def test_one_next_takes_a_new_batch_in_each_call(strategy):
    traced = []

    @rx.function
    def step(iterator):
        traced.append(1)
        return total_of(strategy, next(iterator))

    dataset = strategy.experimental_distribute_dataset(numbers(12, 4))
    for _ in range(2):  # each pass is another iterator, and the program is the same
        iterator = iter(dataset)
        assert [float(step(iterator)) for _ in range(3)] == [6.0, 22.0, 38.0]
        with pytest.raises(rx.errors.OutOfRangeError, match="past the end of its data"):
            step(iterator)
    assert step.num_traces == 1


def test_a_smaller_last_batch_is_another_program(mirrored):
    step = rx.function(lambda iterator: total_of(mirrored, next(iterator)))
    iterator = iter(mirrored.experimental_distribute_dataset(numbers(7, 4)))
    assert [float(step(iterator)), float(step(iterator))] == [6.0, 15.0]
    assert step.num_traces == 2


def test_two_iterators_give_one_element_each():
    first, second = iter(numbers(4)), iter(numbers(4))
    held = iter(numbers(6))
    step = rx.function(lambda a, *, b: next(a) + 10 * next(b) + 100 * held.get_next())
    assert step(first, b=second).tolist() == [0.0, 111.0]
    assert step(first, b=second).tolist() == [222.0, 333.0]
    with pytest.raises(rx.errors.OutOfRangeError):
        step(first, b=second)


def test_get_next_is_an_input_too(mirrored):
    @rx.function
    def step(one, other):
        return total_of(mirrored, one.get_next()) + other.get_next().sum()

    one, other = iter(mirrored.experimental_distribute_dataset(numbers(8, 4))), iter(numbers(4))
    assert [float(step(one, other)) for _ in range(2)] == [7.0, 27.0]
    assert step.num_traces == 1  # a host loop is no trace


class Holder:
    def __init__(self, number):
        self.iterator = iter(Dataset.range(number, number + 1))


def test_an_object_in_the_place_of_a_dead_one_has_an_iterator_of_its_own():
    step = rx.function(lambda holder: next(holder.iterator) * 1)
    traces = step._traces.of(None)
    traces.programs, traces.iterator_inputs = ProgramCache(limit=2), LRUCache(limit=2)
    # More than are kept: the first ones are freed, and later ones lie where they were.
    assert [int(step(Holder(number))) for number in range(12)] == list(range(12))
    assert len(traces.iterator_inputs) == len(traces.programs) == 2


def test_an_object_that_takes_things_back_is_no_iterator():
    class Queue:
        def put_back(self, closure):
            pass

    assert rx.function(lambda queue, x: x + 1)(Queue(), jnp.float32(1)) == 2


def test_a_function_that_catches_everything_gets_its_data():
    iterator = iter(numbers(6))

    @rx.function
    def step():
        try:
            rows = next(iterator)
        except Exception:
            return jnp.float32(-1)
        return rows.sum()

    assert [float(step()) for _ in range(3)] == [1.0, 5.0, 9.0]

    @rx.function
    def total(dataset):
        try:
            return sum(float(rows.sum()) for rows in dataset)
        except Exception as error:
            raise KeyError("mine") from error

    assert total(numbers(6)) == 15.0


@pytest.mark.parametrize("distributed", [False, True])
def test_an_element_that_was_given_back_has_no_position(mirrored, distributed):
    @rx.function
    def step(iterator):
        rows = next(iterator)
        if distributed:
            rows = total_of(mirrored, rows)
        if distributed and fail or len(np.shape(rows)) and rows.shape[0] == 1:
            raise KeyError("mine")
        return rows

    fail, dataset = False, numbers(5, 4)
    iterator = iter(mirrored.experimental_distribute_dataset(dataset) if distributed else dataset)
    step(iterator)
    fail = True
    with pytest.raises(KeyError, match="mine"):
        step(iterator)
    with pytest.raises(rx.errors.UsageError, match="failed and gave its element back"):
        iterator.get_state()
    next(iterator)
    assert next(iterator, None) is None
    assert iterator.get_state()["epoch"] == 0


def test_variables_are_written_with_each_element():
    total = keras.Variable(0.0)

    @rx.function
    def step(iterator):
        total.assign_add(jnp.sum(next(iterator)))

    iterator = iter(numbers(6))
    for _ in range(3):
        step(iterator)
    assert float(total.value) == 15.0
    assert step.num_traces == 1


def test_a_failed_trace_takes_nothing():
    fail = [True]

    @rx.function
    def step(iterator):
        x = next(iterator)
        if fail[0]:
            raise KeyError("mine")
        return x * 1.0

    iterator = iter(numbers(4))
    before = iterator.get_state()
    with pytest.raises(KeyError, match="mine"):
        step(iterator)
    assert iterator.get_state() == before
    fail[0] = False
    assert step(iterator).tolist() == [0.0, 1.0]


@few_strategies
def test_a_loop_over_a_distributed_data_set(strategy):
    calls = []

    @rx.function
    def step(batch):
        calls.append("traced")
        return total_of(strategy, batch)

    @rx.function
    def epoch(dataset):
        total, batches = 0.0, 0
        for batch in dataset:
            total += step(batch)
            batches += 1
        return total / batches

    dataset = strategy.experimental_distribute_dataset(numbers(12, 4))
    assert [float(epoch(dataset)) for _ in range(2)] == [22.0, 22.0]
    assert len(calls) == 1


@few_strategies
def test_a_loop_of_steps_defined_in_it(strategy):
    # As the TPU guide has it: the replica function is made anew in each call.
    traced = []
    with strategy.scope():
        seen = keras.Variable(0.0, aggregation="sum")

    @rx.function
    def steps(iterator, count):
        def step_fn(rows):
            traced.append(1)
            seen.assign_add(rows.sum())

        for _ in range(int(count)) if isinstance(count, int) else count:
            strategy.run(step_fn, args=(next(iterator),))

    iterator = iter(strategy.experimental_distribute_dataset(numbers(32, 4)))
    steps(iterator, 2)
    first = len(traced)
    for _ in range(3):
        steps(iterator, 2)
    assert len(traced) == first
    assert float(seen.value) == sum(range(32))


@pytest.mark.parametrize("distributed", [False, True])
def test_optionals(mirrored, distributed):
    @rx.function
    def all_of_it(iterator):
        total = 0.0
        for _ in range(10):
            optional = iterator.get_next_as_optional()
            if not optional.has_value():
                break
            rows = optional.get_value()
            total += total_of(mirrored, rows) if distributed else rows.sum()
        return total

    dataset = numbers(7, 4)
    iterator = iter(mirrored.experimental_distribute_dataset(dataset) if distributed else dataset)
    assert float(all_of_it(iterator)) == 21.0


def test_a_loop_over_a_data_set_is_said_once(caplog):
    @rx.function
    def mean(dataset):
        parts = [x.sum() for x in dataset]
        return sum(parts) / len(parts)

    with caplog.at_level(logging.INFO, "replicax"):
        assert [float(mean(numbers(4))) for _ in range(2)] == [3.0, 3.0]
    (said,) = [r.getMessage() for r in caplog.records if "plain Python" in r.getMessage()]
    assert said.endswith("it loops over a data set")


def test_nothing_is_written_by_the_trace_that_ends():
    v = keras.Variable(0.0)

    @rx.function
    def fn(dataset):
        v.assign_add(1.0)
        for x in dataset:
            v.assign_add(x.sum())

    fn(numbers(4))
    assert float(v.value) == 7.0


def test_a_function_around_a_host_loop_is_one():
    inner = rx.function(lambda dataset: sum(float(x.sum()) for x in dataset))
    assert rx.function(lambda dataset: 2 * inner(dataset))(numbers(4)) == 12.0


def test_data_is_refused_inside_a_replica(mirrored):
    dataset = numbers(4)
    with pytest.raises(rx.errors.UsageError, match="loops over a data set"):
        mirrored.run(lambda: sum(x.sum() for x in dataset))
    with pytest.raises(ValueError, match="takes an element of an iterator"):
        rx.function(lambda it: mirrored.run(lambda: next(it)))(iter(dataset))


def test_a_function_that_makes_a_data_set_makes_one_in_each_call(mirrored, caplog):
    make = rx.function(lambda: mirrored.experimental_distribute_dataset(numbers(4)))
    with caplog.at_level(logging.INFO, "replicax"):
        assert make() is not make()
    assert "returns a data set" in caplog.text


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("distributed", [False, True])
@pytest.mark.parametrize(
    "loop",
    [
        lambda fn: map_fn(lambda i: fn().sum(), jnp.arange(3)),
        lambda fn: scan(lambda total, i: total + fn().sum(), jnp.arange(3), jnp.float32(0)),
        lambda fn: keras.ops.map(lambda i: fn().sum(), jnp.arange(3)),
        lambda fn: jax.lax.fori_loop(0, 3, lambda i, total: total + fn().sum(), jnp.float32(0)),
        lambda fn: jax.jit(lambda: fn().sum())(),
    ],
)
def test_no_element_in_a_loop_that_is_traced_once(mirrored, loop, distributed, compiled):
    dataset = numbers(8)
    if distributed:
        dataset = mirrored.experimental_distribute_dataset(dataset)
    iterator = iter(dataset)

    def fn():
        rows = next(iterator)
        return total_of(mirrored, rows) if distributed else rows

    call = rx.function(loop) if compiled else loop
    with pytest.raises(rx.errors.UsageError, match="would compute with the same element"):
        call(fn)


@pytest.mark.parametrize("compiled", [False, True])
def test_an_element_under_a_tape_or_a_derivative(compiled):
    w = keras.Variable(3.0)
    iterator = iter(numbers(8))

    def fn():
        with rx.GradientTape() as tape:
            loss = jnp.sum(w * next(iterator))
        return tape.gradient(loss, w)

    call = rx.function(fn) if compiled else fn
    assert [float(call()) for _ in range(2)] == [1.0, 5.0]
    fn = jax.grad(lambda value: jnp.sum(next(iterator) * value))
    call = rx.function(fn) if compiled else fn
    assert [float(call(jnp.float32(2))) for _ in range(2)] == [9.0, 13.0]
