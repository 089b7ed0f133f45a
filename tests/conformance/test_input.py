"""Data sets → per-replica batches; numbers in comments are pairs of the semantics' list B."""

import math
import threading

import grain
import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import replicax as rx
from replicax.testing import MATRIX, strategy_params

from helpers import device_names, two_strategies, wait_until


@pytest.fixture(params=strategy_params(replicas=(2,)), scope="module")
def two(request):
    return MATRIX[request.param]()


def chunks(rows, size):
    """Return range(rows) in batches of `size`, as `range(rows).batch(size)` of tf.data."""
    return [np.arange(start, min(start + size, rows)) for start in range(0, rows, size)]


def pieces(strategy, batch):
    """Return what each replica gets of a batch, as lists."""
    return [np.asarray(piece).tolist() for piece in strategy.experimental_local_results(batch)]


def epoch(strategy, dataset):
    return [pieces(strategy, batch) for batch in dataset]


def distributed(strategy, dataset, **options):
    return epoch(
        strategy, strategy.experimental_distribute_dataset(dataset, rx.InputOptions(**options))
    )


def joined(strategy, dataset):
    """Return the rows of each batch, over all replicas."""
    return [sum(batch, []) for batch in distributed(strategy, dataset)]


# How a batch is split.


def test_no_row_is_dropped_or_repeated(strategy):
    replicas = strategy.num_replicas_in_sync
    assert distributed(strategy, [np.arange(0)]) == [[[]] * replicas]
    for size in range(1, 18):
        seen = distributed(strategy, chunks(17, size))
        assert [sum(batch, []) for batch in seen] == [batch.tolist() for batch in chunks(17, size)]
        for batch, whole in zip(seen, chunks(17, size), strict=True):
            # ceil(rows / replicas) until they run out: no replica holds more than that.
            assert len(batch) == replicas
            assert max(map(len, batch)) == math.ceil(len(whole) / replicas)
            assert [len(piece) for piece in batch] == sorted(map(len, batch), reverse=True)


def test_all_arrays_of_a_nest_are_split_alike(two):
    batch = {"x": np.arange(6.0).reshape(3, 2), "y": (np.arange(3), jnp.arange(3) * 10)}
    (seen,) = two.experimental_distribute_dataset([batch])
    first, second = two.experimental_local_results(seen)
    assert np.asarray(first["x"]).tolist() == [[0.0, 1.0], [2.0, 3.0]]
    assert np.asarray(second["x"]).tolist() == [[4.0, 5.0]]
    assert [np.asarray(leaf).tolist() for leaf in first["y"]] == [[0, 1], [0, 10]]
    assert [np.asarray(leaf).tolist() for leaf in second["y"]] == [[2], [20]]


def test_with_one_replica_batches_are_plain_arrays():
    for name in strategy_params(replicas=(1,)):
        (batch,) = MATRIX[name]().experimental_distribute_dataset([{"x": np.arange(3)}])
        assert isinstance(batch["x"], jax.Array)
        assert batch["x"].tolist() == [0, 1, 2]


def test_pieces_lie_on_their_replicas_devices(strategy):
    rows = 2 * strategy.num_replicas_in_sync
    (batch,) = strategy.experimental_distribute_dataset([np.arange(rows)])
    devices = [device_names(piece) for piece in strategy.experimental_local_results(batch)]
    assert devices == [[name] for name in strategy.extended.worker_devices]


# What a data set is.


@pytest.mark.parametrize("kind", [np.arange, jnp.arange])
def test_a_list_of_batches(strategy, kind):
    assert joined(strategy, [kind(5), kind(5, 8)]) == [[0, 1, 2, 3, 4], [5, 6, 7]]


@pytest.mark.parametrize("kind", [np.arange, jnp.arange])
def test_an_array_is_one_batch(two, kind):
    assert distributed(two, kind(4)) == [[[0, 1], [2, 3]]]


def test_a_tuple_or_dict_of_arrays_is_one_batch(two):
    (pair,) = two.experimental_distribute_dataset((np.arange(4), np.arange(4) * 10))
    assert [np.asarray(leaf).tolist() for leaf in two.experimental_local_results(pair)[1]] == [
        [2, 3],
        [20, 30],
    ]
    (named,) = two.experimental_distribute_dataset({"a": np.arange(4), "b": {"c": np.ones(4)}})
    assert np.asarray(two.experimental_local_results(named)[0]["a"]).tolist() == [0, 1]


class Squares(keras.utils.PyDataset):
    """Two batches of three and two squares; says when an epoch begins and ends."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __len__(self):
        return 2

    def __getitem__(self, index):
        return np.arange(3 * index, min(3 * index + 3, 5)) ** 2

    def on_epoch_begin(self):
        self.calls.append("begin")

    def on_epoch_end(self):
        self.calls.append("end")


def test_a_py_dataset_hears_of_its_epochs(two):
    squares = Squares()
    dataset = two.experimental_distribute_dataset(squares)
    for _ in range(2):
        assert epoch(two, dataset) == [[[0, 1], [4]], [[9], [16]]]
    assert squares.calls == ["begin", "end"] * 2


def test_a_py_dataset_may_be_infinite(mirrored):
    class Endless(keras.utils.PyDataset):
        num_batches = None

        def __getitem__(self, index):
            return np.full(2, index)

    iterator = iter(mirrored.experimental_distribute_dataset(Endless()))
    seen = [pieces(mirrored, next(iterator)) for _ in range(3)]
    assert seen == [[[0], [0]], [[1], [1]], [[2], [2]]]


def test_grain_data_sets(two):
    batches = grain.MapDataset.range(5).batch(3)
    expected = [[[0, 1], [2]], [[3], [4]]]
    assert distributed(two, batches) == expected
    streamed = two.experimental_distribute_dataset(batches.to_iter_dataset())
    assert epoch(two, streamed) == expected
    assert epoch(two, streamed) == expected


class Tensor:
    """An array of another library, as far as NumPy sees it."""

    def __init__(self, values):
        self._values = np.asarray(values)

    def __array__(self, dtype=None, copy=None):
        return np.array(self._values, dtype=dtype)


class DataLoader:
    """What a torch `DataLoader` looks like: a length, and an iterator of nests of tensors."""

    def __len__(self):
        return 2

    def __iter__(self):
        yield [Tensor([0, 1, 2]), Tensor([0.0, 0.5, 1.0])]
        yield [Tensor([3, 4]), Tensor([1.5, 2.0])]


def test_a_data_loader_of_tensors(two):
    dataset = two.experimental_distribute_dataset(DataLoader())
    for _ in range(2):
        first, last = dataset
        assert isinstance(first, list)
        assert [pieces(two, leaf) for leaf in first] == [[[0, 1], [2]], [[0.0, 0.5], [1.0]]]
        assert [pieces(two, leaf) for leaf in last] == [[[3], [4]], [[1.5], [2.0]]]


def test_a_tf_data_like_data_set(two):
    class Dataset:
        def as_numpy_iterator(self):
            return iter(chunks(5, 3))

        def __iter__(self):
            raise AssertionError("its own tensors were asked for")

    dataset = two.experimental_distribute_dataset(Dataset())
    expected = [[[0, 1], [2]], [[3], [4]]]
    assert [epoch(two, dataset) for _ in range(2)] == [expected, expected]


def test_a_sequence_by_protocol(mirrored):
    class Sequence:
        def __getitem__(self, index):
            return chunks(4, 2)[index]

    assert distributed(mirrored, Sequence()) == [[[0], [1]], [[2], [3]]]


def test_a_generator_function_gives_every_epoch(two):
    def generate():
        yield from chunks(5, 3)

    dataset = two.experimental_distribute_dataset(generate)
    expected = [[[0, 1], [2]], [[3], [4]]]
    assert [epoch(two, dataset) for _ in range(2)] == [expected, expected]


def test_a_callable_may_return_any_iterable(mirrored):
    assert distributed(mirrored, lambda: [np.arange(2)]) == [[[0], [1]]]


def test_a_generator_gives_one_epoch(two):
    dataset = two.experimental_distribute_dataset(batch for batch in chunks(4, 2))
    assert epoch(two, dataset) == [[[0], [1]], [[2], [3]]]
    with pytest.raises(
        rx.errors.ExhaustedInput, match="Pass the function that makes the generator"
    ):
        next(iter(dataset))


# Iterating.


def test_iterating_again_is_a_new_epoch(two):
    shuffled = np.random.default_rng(0)
    dataset = two.experimental_distribute_dataset(lambda: iter([shuffled.permutation(64)]))
    first, second = (sum(epoch(two, dataset)[0], []) for _ in range(2))
    assert first != second  # 53
    assert sorted(first) == sorted(second) == list(range(64))
    kept = two.experimental_distribute_dataset([np.arange(4)])
    assert epoch(two, kept) == epoch(two, kept) == [[[0, 1], [2, 3]]]  # 53


def test_two_iterators_do_not_disturb_each_other(mirrored):
    dataset = mirrored.experimental_distribute_dataset(chunks(4, 2))
    one, other = iter(dataset), iter(dataset)
    assert pieces(mirrored, next(one)) == [[0], [1]]
    assert pieces(mirrored, next(one)) == [[2], [3]]
    assert pieces(mirrored, next(other)) == [[0], [1]]


@two_strategies
def test_get_next_ends_with_stop_iteration(strategy):
    iterator = iter(strategy.experimental_distribute_dataset(chunks(4, 2)))
    assert iter(iterator) is iterator
    assert [sum(pieces(strategy, iterator.get_next()), []) for _ in range(2)] == [[0, 1], [2, 3]]
    for _ in range(2):
        with pytest.raises(StopIteration):
            iterator.get_next()


@two_strategies
def test_get_next_as_optional_says_whether_there_is_one(strategy):
    iterator = iter(strategy.experimental_distribute_dataset([np.arange(2)]))
    first, end = iterator.get_next_as_optional(), iterator.get_next_as_optional()
    assert (first.has_value(), end.has_value()) == (True, False)
    assert sum(pieces(strategy, first.get_value()), []) == [0, 1]
    with pytest.raises(rx.errors.UsageError, match="has_value"):
        end.get_value()


@two_strategies
def test_the_element_spec_leaves_the_rows_open(strategy):
    batch = {"x": np.ones((4, 3), "float32"), "y": np.arange(4, dtype="int32")}
    dataset = strategy.experimental_distribute_dataset([batch])
    assert dataset.element_spec == {
        "x": rx.data.ArraySpec((None, 3), "float32"),
        "y": rx.data.ArraySpec((None,), "int32"),
    }
    assert iter(dataset).element_spec == dataset.element_spec


def test_asking_for_the_element_spec_takes_no_batch_away(mirrored):
    dataset = mirrored.experimental_distribute_dataset(batch for batch in chunks(4, 2))
    assert dataset.element_spec.shape == (None,)
    assert epoch(mirrored, dataset) == [[[0], [1]], [[2], [3]]]


@two_strategies
def test_next_inside_run_is_refused(strategy):
    iterator = iter(strategy.experimental_distribute_dataset(chunks(4, 2)))
    outside = "should be called from outside of replica_fn"
    with pytest.raises(rx.errors.NotInCrossReplicaContext, match=outside):  # 61
        strategy.run(lambda: next(iterator))
    with pytest.raises(ValueError, match=outside):
        strategy.run(iterator.get_next_as_optional)
    assert sum(pieces(strategy, next(iterator)), []) == [0, 1]


# Into `run` and out of it.


def test_a_replica_without_rows_computes_all_the_same(two):
    (batch,) = two.experimental_distribute_dataset([np.array([5.0], "float32")])
    zeros, squares = two.run(lambda x: (jnp.zeros(3), x**2), args=(batch,))
    assert pieces(two, zeros) == [[0.0] * 3] * 2  # 56
    assert pieces(two, squares) == [[25.0], []]  # 56


# Data sets of a function.


def test_the_function_is_told_where_it_runs(strategy):
    seen = []

    def dataset_fn(context):
        seen.append(context)
        return chunks(4, 2)

    dataset = strategy.distribute_datasets_from_function(dataset_fn)
    list(dataset)
    list(dataset)
    assert seen == [rx.InputContext(1, 0, strategy.num_replicas_in_sync)]  # 50, one worker


def test_a_pipeline_per_replica(strategy):
    mode = rx.InputReplicationMode.PER_REPLICA
    replicas, seen = strategy.num_replicas_in_sync, []

    def dataset_fn(context):
        seen.append(context)
        return [np.arange(2) + 10 * context.input_pipeline_id]

    options = rx.InputOptions(experimental_replication_mode=mode)
    dataset = strategy.distribute_datasets_from_function(dataset_fn, options)
    assert epoch(strategy, dataset) == [[[10 * r, 10 * r + 1] for r in range(replicas)]]
    assert seen == [rx.InputContext(replicas, replica, replicas) for replica in range(replicas)]


def test_pipelines_of_different_lengths_end_together(mirrored):
    options = rx.InputOptions(
        experimental_replication_mode=rx.InputReplicationMode.PER_REPLICA,
        experimental_place_dataset_on_device=True,
        experimental_fetch_to_device=False,
    )
    dataset = mirrored.distribute_datasets_from_function(
        lambda context: chunks(4 - 2 * context.input_pipeline_id, 2), options
    )
    assert epoch(mirrored, dataset) == [[[0, 1], [0, 1]], [[2, 3], []]]


def test_a_function_may_return_any_data_set(two):
    def dataset_fn(context):
        return grain.MapDataset.range(5).batch(context.get_per_replica_batch_size(4))

    dataset = two.distribute_datasets_from_function(dataset_fn)
    expected = [[[0, 1], [2, 3]], [[4], []]]
    assert [epoch(two, dataset) for _ in range(2)] == [expected, expected]


# Options.


@pytest.mark.parametrize("ahead", [0, 1, 9])
def test_batches_placed_ahead_stay_in_order(two, ahead):
    rows = distributed(two, chunks(9, 2), experimental_per_replica_buffer_size=ahead)
    assert [sum(batch, []) for batch in rows] == [[0, 1], [2, 3], [4, 5], [6, 7], [8]]


def test_as_many_batches_are_taken_ahead_as_asked_for(mirrored):
    taken = []

    def generate():
        for number in range(6):
            taken.append(number)
            yield np.full(2, number)

    for ahead in (0, 1, 3):
        options = rx.InputOptions(experimental_per_replica_buffer_size=ahead)
        taken.clear()
        iterator = iter(mirrored.experimental_distribute_dataset(generate, options))
        assert taken == []
        assert pieces(mirrored, next(iterator)) == [[0], [0]]
        wait_until(lambda count=ahead + 1: len(taken) == count)
        # A batch more would have been taken in the time that this one waits for.
        threading.Event().wait(0.05)
        assert taken == list(range(ahead + 1))


class Reused:
    """A loader that writes every batch into the same memory."""

    def __iter__(self):
        # Aligned, so that on a CPU `device_put` would alias it.
        memory = np.empty(64 + 64, "uint8")
        start = -memory.ctypes.data % 64
        buffer = memory[start : start + 32].view("float32")
        for number in range(5):
            buffer[:] = number
            yield buffer


@pytest.mark.parametrize("ahead", [0, 1, 3])
@pytest.mark.parametrize("fetch", [True, False])
def test_a_loader_may_reuse_its_buffer(two, ahead, fetch):
    options = rx.InputOptions(
        experimental_fetch_to_device=fetch, experimental_per_replica_buffer_size=ahead
    )
    batches = list(two.experimental_distribute_dataset(Reused(), options))
    seen = [sum(pieces(two, batch), []) for batch in batches]
    assert seen == [[float(number)] * 8 for number in range(5)]


def test_a_function_may_return_a_loader_that_reuses_its_buffer(two):
    dataset = two.distribute_datasets_from_function(lambda context: Reused())
    seen = sum((piece for batch in epoch(two, dataset) for piece in batch), [])
    assert seen == [float(number) for number in range(5) for _ in range(8)]


def test_pieces_can_stay_on_the_host(strategy):
    options = rx.InputOptions(experimental_fetch_to_device=False)
    (batch,) = strategy.experimental_distribute_dataset([np.arange(8.0, dtype="float32")], options)
    local = strategy.experimental_local_results(batch)
    assert [type(piece) for piece in local] == [np.ndarray] * strategy.num_replicas_in_sync
    assert sum((piece.tolist() for piece in local), []) == [0.0, 1, 2, 3, 4, 5, 6, 7]
    total = strategy.run(lambda x: rx.get_replica_context().all_reduce("SUM", x.sum()), (batch,))
    assert float(total) == 28.0


def test_even_pieces_on_the_host_are_even(two):
    options = rx.InputOptions(experimental_fetch_to_device=False)
    even, uneven = two.experimental_distribute_dataset([np.arange(4), np.arange(3)], options)
    # `run` computes uneven pieces on every device, which only they should cost.
    assert (even.is_even, uneven.is_even) == (True, False)


@pytest.mark.parametrize(
    "others",
    [
        {"experimental_replication_mode": rx.InputReplicationMode.PER_REPLICA},
        {"experimental_fetch_to_device": False},
    ],
)
def test_placing_the_pipeline_on_a_device_needs_two_more_options(mirrored, others):
    options = rx.InputOptions(experimental_place_dataset_on_device=True, **others)
    with pytest.raises(ValueError, match="experimental_place_dataset_on_device"):  # 52
        mirrored.distribute_datasets_from_function(lambda context: chunks(4, 2), options)
    # Of a data set, whose one pipeline stays on the host, TensorFlow asks nothing.
    if "experimental_fetch_to_device" in others:
        dataset = mirrored.experimental_distribute_dataset(chunks(4, 4), options)
        assert epoch(mirrored, dataset) == [[[0, 1], [2, 3]]]


# Batches that are none.


def test_single_elements_of_a_function_go_one_to_a_replica(strategy):
    replicas = strategy.num_replicas_in_sync
    rows = rx.data.Dataset.range(2 * replicas)
    elements = rows.map(lambda row: (np.full(3, row), row))
    dataset = strategy.distribute_datasets_from_function(lambda context: elements)
    assert [leaf.shape for leaf in dataset.element_spec] == [(3,), ()]
    totals = [
        strategy.reduce("SUM", strategy.run(lambda x, y: x.sum() + y, args=element), axis=None)
        for element in dataset
    ]
    assert sum(map(int, totals)) == 4 * sum(range(2 * replicas))
    assert len(totals) == 2


def test_single_elements_that_do_not_fill_a_step_are_refused(mirrored):
    dataset = mirrored.distribute_datasets_from_function(lambda context: rx.data.Dataset.range(5))
    with pytest.raises(rx.errors.UnbatchedInput):
        list(dataset)


def test_an_error_of_the_loader_comes_after_the_batches_before_it(mirrored):
    def generate():
        yield np.arange(4)
        raise OSError("the disk is gone")

    iterator = iter(mirrored.experimental_distribute_dataset(generate))
    assert pieces(mirrored, next(iterator)) == [[0, 1], [2, 3]]
    with pytest.raises(OSError, match="the disk is gone"):
        next(iterator)
