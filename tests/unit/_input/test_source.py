"""What counts as a data set, and what is checked about its batches."""

import collections

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax._input.source import as_dataset, check_batch

from helpers import run_python


def batches(dataset):
    return [jax.tree.map(lambda leaf: np.asarray(leaf).tolist(), b) for b in as_dataset(dataset)]


class Pair(collections.namedtuple("Pair", "x y")):
    __slots__ = ()


@pytest.mark.parametrize(
    "nest",
    [
        np.arange(2),
        jnp.arange(2),
        (np.arange(2), jnp.arange(2)),
        {"x": np.arange(2), "y": (np.arange(2),)},
        Pair(np.arange(2), np.arange(2)),
    ],
    ids=["numpy", "jax", "tuple", "dict", "namedtuple"],
)
def test_a_nest_of_arrays_is_one_batch(nest):
    source = as_dataset(nest)
    for _ in range(2):
        (batch,) = source
        assert jax.tree.structure(batch) == jax.tree.structure(nest)


@pytest.mark.parametrize(
    "dataset", [[], (), {}, iter(())], ids=["list", "tuple", "dict", "iterator"]
)
def test_nothing_is_an_empty_epoch(dataset):
    assert batches(dataset) == []


def test_a_missing_part_of_a_batch_is_no_batch():
    # Keras' (x, y, sample_weight) without weights.
    assert batches((np.arange(2), np.arange(2), None)) == [([0, 1], [0, 1], None)]


def test_none_stays_in_the_structure():
    assert batches([(np.arange(2), None)]) == [([0, 1], None)]


def test_a_leaf_becomes_an_array():
    class Column:
        def __array__(self, dtype=None, copy=None):
            return np.arange(3)

    (batch,) = as_dataset([Column()])
    assert isinstance(batch, np.ndarray)


def test_arrays_are_not_copied_or_converted():
    host, device = np.arange(3), jnp.arange(3)
    (batch,) = as_dataset([(host, device)])
    assert batch[0] is host
    assert batch[1] is device


def test_an_iterator_is_used_up_by_half_a_pass():
    source = as_dataset(iter([np.arange(2), np.arange(2)]))
    next(iter(source))
    with pytest.raises(rx.errors.ExhaustedInput, match="Pass the function"):
        iter(source)


def test_the_wrong_thing_is_named_by_its_type():
    with pytest.raises(rx.errors.UsageError, match="`dataset`.*<object object"):
        as_dataset(object())


def test_a_function_that_returns_no_batches():
    source = as_dataset(lambda: None)
    with pytest.raises(TypeError, match="not iterable"):
        next(iter(source))


@pytest.mark.parametrize(
    "batch", [1.0, (np.arange(2), 1.0), np.float32(1.0), [1, 2], np.array(1.0), "text"], ids=str
)
def test_a_scalar_leaf_is_refused(batch):
    with pytest.raises(rx.errors.UnbatchedInput, match="scalars"):
        check_batch(*as_dataset([batch]), 0, None)


def test_unequal_rows_are_refused_with_their_shapes():
    with pytest.raises(rx.errors.UnbatchedInput, match="number of rows") as caught:
        check_batch({"x": np.ones((2, 3)), "y": np.ones(4)}, 0, None)
    assert "[(2, 3), (4,)]" in str(caught.value)


def test_the_structure_must_not_change():
    structure = check_batch((np.arange(2),), 0, None)
    # Another number of rows is no other structure.
    assert check_batch((np.arange(3),), 1, structure) == structure
    with pytest.raises(rx.errors.BatchStructureChanged, match="Yield the same nest") as caught:
        check_batch((np.arange(2), np.arange(2)), 2, structure)
    assert "Batch 2" in str(caught.value)


def test_the_order_of_keys_is_no_structure():
    structure = check_batch({"a": np.arange(2), "b": np.arange(2)}, 0, None)
    assert check_batch({"b": np.arange(2), "a": np.arange(2)}, 1, structure) == structure


def test_no_library_is_imported_to_recognise_its_data_sets():
    code = (
        "import sys, numpy as np, replicax._input.dataset as d, replicax._input.source as s\n"
        "list(s.as_dataset([np.arange(2)]))\n"
        "print([m for m in ('torch', 'tensorflow', 'grain', 'keras') if m in sys.modules])"
    )
    assert run_python(code) == "[]\n"


class Endless:
    """A PyDataset without an end, by protocol."""

    num_batches = None

    def __getitem__(self, index):
        return np.full(1, index)

    def on_epoch_end(self):
        raise AssertionError("it has no end")


class Sized:
    def __len__(self):
        return 7

    def __iter__(self):
        return iter([np.arange(2)] * 7)


@pytest.mark.parametrize(
    ("dataset", "expected"),
    [
        ([np.arange(2)] * 3, 3),
        ([], 0),
        (np.arange(2), 1),
        ({"x": np.arange(2)}, 1),
        (Sized(), 7),
        (Endless(), rx.data.INFINITE_CARDINALITY),
        (lambda: iter([np.arange(2)]), rx.data.UNKNOWN_CARDINALITY),
        (iter([np.arange(2)]), rx.data.UNKNOWN_CARDINALITY),
    ],
    ids=["list", "empty", "array", "nest", "sized", "endless", "function", "iterator"],
)
def test_how_many_batches_there_are(dataset, expected):
    assert as_dataset(dataset).cardinality() == expected


def test_a_loader_that_does_not_know_its_length():
    class Streaming:
        """A torch `DataLoader` over an `IterableDataset`: it has `__len__`, which fails."""

        def __len__(self):
            raise TypeError("object of type 'IterableDataset' has no len()")

        def __iter__(self):
            return iter([np.arange(2)])

    source = as_dataset(Streaming())
    assert source.cardinality() == rx.data.UNKNOWN_CARDINALITY
    assert len(list(source)) == 1
