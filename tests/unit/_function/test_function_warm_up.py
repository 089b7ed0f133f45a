"""A function is compiled before its first batch is there: nothing is computed, nothing is taken."""

import threading

import jax
import keras
import numpy as np
import pytest

import replicax as rx
from replicax._function.function import run_functions_eagerly

ROWS = np.arange(30.0, dtype="float32").reshape(15, 2)


class Loop:
    """A loop that sums rows into a variable, by functions of a batch and of an iterator."""

    def __init__(self, strategy, dataset):
        self.strategy = strategy
        self.traces = 0
        self.batches = strategy.experimental_distribute_dataset(dataset)
        with strategy.scope():
            self.total = keras.Variable(0.0, dtype="float32", aggregation="sum")

    def run(self, batch):
        self.traces += 1

        def add(rows):
            self.total.assign_add(rows.sum())
            return rows.sum()

        return self.strategy.reduce("SUM", self.strategy.run(add, (batch,)), axis=None)

    @rx.function
    def of_batch(self, batch):
        return self.run(batch)

    @rx.function
    def of_iterator(self, iterator):
        return self.run(next(iterator))


def batches_of(size):
    return rx.data.Dataset.from_tensor_slices(ROWS).batch(size)


@pytest.fixture
def compiled():
    found = []

    def heard(event, seconds, **about):
        if event == "/jax/core/compile/backend_compile_duration":
            found.append(about.get("fun_name", ""))

    jax.monitoring.register_event_duration_secs_listener(heard)
    yield lambda: [name for name in found if "program" in name]
    jax.monitoring.unregister_event_duration_listener(heard)


@pytest.mark.parametrize(
    "strategy", ["one_device", "mirrored_2", "central_storage_2"], indirect=True
)
@pytest.mark.parametrize("size", [6, 5])  # two replicas have three rows each; three and two
def test_the_first_call_of_a_function_compiles_nothing(strategy, compiled, size):
    loop = Loop(strategy, batches_of(size))
    iterator = iter(loop.batches)
    assert loop.of_batch.warm_up(loop.batches)
    assert loop.of_iterator.warm_up(iterator)
    assert len(compiled()) == 2
    assert float(loop.total) == 0
    first = float(loop.of_batch(next(iterator)))
    second = float(loop.of_iterator(iterator))
    assert first == ROWS[:size].sum()
    assert second == ROWS[size : 2 * size].sum()
    assert len(compiled()) == 2
    assert float(loop.total) == first + second


def test_data_sets_of_single_replicas_say_what_comes(mirrored, compiled):
    loop = Loop(mirrored, batches_of(6))
    data = mirrored.distribute_datasets_from_function(lambda context: batches_of(4))
    assert loop.of_batch.warm_up(data)
    assert float(loop.of_batch(next(iter(data)))) == ROWS[:8].sum()
    assert len(compiled()) == 1


def test_other_arguments_are_those_of_a_call(mirrored, compiled):
    data = mirrored.experimental_distribute_dataset(batches_of(6))
    scaled = rx.function(
        lambda batch, scale: mirrored.run(lambda rows: rows.sum() * scale, (batch[0],))
    )
    assert scaled.warm_up((data,), scale=np.float32(2))
    values = scaled((next(iter(data)),), scale=np.float32(3))
    assert float(mirrored.reduce("SUM", values, axis=None)) == 3 * ROWS[:6].sum()
    assert len(compiled()) == 1


def test_a_pass_that_has_begun_is_read_meanwhile(mirrored):
    read = threading.Event()

    def rows():
        read.set()
        yield from ROWS

    spec = rx.data.ArraySpec((2,), "float32")
    data = rx.data.Dataset.from_generator(rows, output_signature=spec).batch(6)
    batches = mirrored.experimental_distribute_dataset(data)
    step = rx.function(lambda batch: mirrored.run(lambda rows: rows.sum(), (batch,)))
    step.warm_up(batches)
    assert not read.is_set()
    iterator = iter(batches)
    step.warm_up(batches)
    assert read.wait(60)
    assert mirrored.gather(next(iterator), axis=0).tolist() == ROWS[:6].tolist()


def test_what_runs_as_plain_python_is_not_compiled_ahead(mirrored):
    loop = Loop(mirrored, batches_of(6))

    @rx.function
    def all_of(iterator):
        return [loop.run(next(iterator)) for _ in range(2)]

    iterator = iter(loop.batches)
    assert not all_of.warm_up(iterator)
    assert len(all_of(iterator)) == 2
    assert not all_of.warm_up(iterator)
    run_functions_eagerly(True)
    try:
        assert not loop.of_batch.warm_up(loop.batches)
    finally:
        run_functions_eagerly(False)
    assert float(loop.total) == ROWS[:12].sum()


def test_an_error_of_the_function_is_raised_and_takes_nothing(mirrored):
    iterator = iter(mirrored.experimental_distribute_dataset(batches_of(6)))

    @rx.function
    def fails(iterator):
        raise KeyError(next(iterator))

    with pytest.raises(KeyError):
        fails.warm_up(iterator)
    assert mirrored.gather(next(iterator), axis=0).tolist() == ROWS[:6].tolist()


def test_a_method_by_its_class_and_data_that_fit_reads(mirrored, compiled):
    loop = Loop(mirrored, batches_of(6))
    assert Loop.of_batch.warm_up(loop, loop.batches)
    iterator = iter(loop.batches)
    assert float(Loop.of_batch(loop, next(iterator))) == ROWS[:6].sum()
    assert len(compiled()) == 1
    rest = iterator.host_batches()
    assert loop.of_batch.warm_up(loop.batches)  # what `fit` reads now is read by nobody else
    assert [batch.shape for batch in rest] == [(6, 2), (3, 2)]


def test_what_is_not_known_before_it_is_there_is_refused(mirrored):
    step = rx.function(lambda batch: mirrored.run(lambda rows: rows.sum(), (batch,)))
    of_iterator = rx.function(lambda iterator: next(iterator).sum())
    taken = []
    for data in (
        rx.data.Dataset.from_generator(lambda: taken.append(1) or ROWS).batch(4),
        rx.data.Dataset.from_tensor_slices(ROWS).map(lambda row: taken.append(1) or row).batch(4),
    ):
        with pytest.raises(rx.errors.UsageError, match="output_signature"):
            step.warm_up(mirrored.experimental_distribute_dataset(data))
    assert taken == []
    spec = rx.data.ArraySpec((None, 2), "float32")
    sizes = rx.data.Dataset.from_generator(lambda: [ROWS[:2], ROWS[2:5]], output_signature=spec)
    with pytest.raises(rx.errors.UsageError, match=r"batch\(n\)"):
        step.warm_up(mirrored.experimental_distribute_dataset(sizes))
    spec = rx.data.ArraySpec((None,), "float32")
    ragged = rx.data.Dataset.from_generator(lambda: [ROWS[0]], output_signature=spec)
    ragged = ragged.padded_batch(2)
    with pytest.raises(rx.errors.UsageError, match="padded_batch"):
        step.warm_up(mirrored.experimental_distribute_dataset(ragged))
    with pytest.raises(rx.errors.UsageError, match="Cannot warm up"):
        of_iterator.warm_up(iter(batches_of(4)))
