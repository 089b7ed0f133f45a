"""Where elements come from: arrays, numbers, generators, objects with rows, file names."""

import os
from pathlib import Path
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx

Dataset = rx.data.Dataset
ArraySpec = rx.data.ArraySpec
UsageError = rx.errors.UsageError


def numbers(ds):
    return [int(x) for x in ds]


def test_rows_of_arrays():
    ds = Dataset.from_tensor_slices((np.arange(6).reshape(3, 2), {"y": [0.5, 1.5, 2.5]}, None))
    assert [(x.tolist(), float(y["y"]), none) for x, y, none in ds] == [
        ([0, 1], 0.5, None),
        ([2, 3], 1.5, None),
        ([4, 5], 2.5, None),
    ]
    spec = ArraySpec((2,), np.int64), {"y": ArraySpec((), np.float32)}, None
    assert (ds.element_spec, len(ds)) == (spec, 3)


@pytest.mark.parametrize(
    ("rows", "dtype"),
    [  # the types are those of tf.data
        ([1, 2], np.int32),
        (range(3), np.int32),
        ([1.5], np.float32),
        ([True], np.bool_),
        (np.arange(2.0), np.float64),
        (jnp.arange(2, dtype=jnp.bfloat16), jnp.bfloat16),
        (["a"], str),
        (np.array(["a", "bcd"]), str),
        ([b"a"], bytes),
    ],
)
def test_types_of_rows(rows, dtype):
    ds = Dataset.from_tensor_slices(rows)
    assert ds.element_spec == ArraySpec((), dtype)
    (batch,) = ds.batch(9)
    assert isinstance(batch, np.ndarray)
    assert batch.tolist() == list(rows)


def test_no_rows_are_an_empty_data_set():  # as tf.data
    ds = Dataset.from_tensor_slices(np.zeros((0, 3)))
    assert (list(ds), len(ds), ds.element_spec) == ([], 0, ArraySpec((3,), np.float64))
    assert Dataset.from_tensor_slices(np.array([], object)).element_spec == ArraySpec((), object)


def test_arrays_are_not_copied_but_batches_are():
    rows = np.arange(4)
    ds = Dataset.from_tensor_slices(rows)
    rows[0] = 7
    batch = next(iter(ds.batch(4)))
    assert batch.tolist() == [7, 1, 2, 3]
    batch[:] = 0
    next(iter(ds.map(lambda x: x)))
    assert rows.tolist() == [7, 1, 2, 3]


def test_a_function_cannot_change_the_element_that_repeats():
    def in_place(x):
        x += 1
        return x

    ds = Dataset.from_tensors(np.zeros(2)).repeat(2)
    assert [x.tolist() for x in ds.map(lambda x: x + 1)] == [[1, 1], [1, 1]]
    with pytest.raises(rx.errors.MapFailed, match="in_place.*read-only"):
        list(ds.map(in_place))


def test_tensors_are_one_element():
    (element,) = Dataset.from_tensors((1, {"a": [1.5, 2.5]}, None, "text"))
    assert (element[0], element[1]["a"].tolist(), element[2:]) == (1, [1.5, 2.5], (None, "text"))


def test_rows_are_read_together_only_if_they_are_small():
    class Rows:
        taken = 0

        def __len__(self):
            return 100

        def __getitem__(self, row):
            Rows.taken += 1
            return row

    iterator = iter(Dataset.from_source(Rows()))
    assert numbers(next(iterator) for _ in range(3)) == [0, 1, 2]
    assert Rows.taken == 3


@pytest.mark.parametrize("arguments", [(4,), (2, 5), (1, 10, 3), (5, 0, -2), (3, 3), (5, 2)])
def test_ranges_are_those_of_python(arguments):
    ds = Dataset.range(*arguments)
    assert numbers(ds) == list(range(*arguments))
    assert len(ds) == len(range(*arguments))
    assert ds.element_spec == ArraySpec((), np.int64)


def test_a_range_has_the_type_asked_for():
    ds = Dataset.range(3, output_type=np.float32)
    assert [x.dtype for x in ds] == [np.float32] * 3
    assert ds.element_spec.dtype == np.float32


def test_a_generator_is_called_for_each_pass():
    calls = []

    def generator(start, stop):
        calls.append(start)
        yield from range(start, stop)

    ds = Dataset.from_generator(generator, args=(2, 5))
    assert numbers(ds) == numbers(ds) == [2, 3, 4]
    assert (calls, ds.cardinality()) == ([2, 2], rx.data.UNKNOWN_CARDINALITY)


@pytest.mark.parametrize("iterable", [[1, 2], (1, 2), np.array([1, 2]), {1: "a", 2: "b"}])
def test_a_function_may_return_any_iterable(iterable):
    assert numbers(Dataset.from_generator(lambda: iterable)) == [1, 2]


def test_a_generator_may_fill_one_array_again_and_again():  # as tf.data
    def generator():
        buffer = np.zeros(2, int)
        for n in range(4):
            buffer[:] = n
            yield {"x": buffer}

    ds = Dataset.from_generator(generator)
    assert next(iter(ds.batch(4)))["x"].tolist() == [[n, n] for n in range(4)]
    assert sorted(e["x"].tolist() for e in ds.shuffle(4)) == [[n, n] for n in range(4)]
    assert [e["x"].tolist() for e in list(ds.prefetch(4))] == [[n, n] for n in range(4)]


@pytest.mark.parametrize(
    "signature",
    [
        {"output_signature": (ArraySpec((None,), np.float32), ArraySpec((), np.int64))},
        {"output_types": (np.float32, np.int64), "output_shapes": ((None,), ())},
        {"output_types": (np.float32, np.int64), "output_shapes": ([None], [])},
        {
            "output_signature": (  # as a `tf.TensorSpec` looks
                SimpleNamespace(shape=[None], dtype=SimpleNamespace(as_numpy_dtype=np.float32)),
                SimpleNamespace(shape=[], dtype=SimpleNamespace(as_numpy_dtype=np.int64)),
            )
        },
    ],
)
def test_elements_are_converted_to_the_signature(signature):
    ds = Dataset.from_generator(lambda: iter([([1, 2], 3.0), ([], 4)]), **signature)
    assert ds.element_spec == (ArraySpec((None,), np.float32), ArraySpec((), np.int64))
    first, second = ds
    assert (first[0].dtype, first[0].tolist(), first[1]) == (np.float32, [1, 2], 3)
    assert (second[1].dtype, second[0].shape) == (np.int64, (0,))


def test_a_signature_without_shapes_allows_all():
    for signature in (
        {"output_types": np.float32},
        {"output_types": SimpleNamespace(as_numpy_dtype=np.float32)},
        {"output_signature": SimpleNamespace(shape=SimpleNamespace(rank=None), dtype=np.float32)},
    ):
        ds = Dataset.from_generator(lambda: iter([1, [2, 3]]), **signature)
        assert ds.element_spec == ArraySpec(None, np.float32)
        assert ds.batch(2).element_spec == ds.batch(2).unbatch().element_spec == ds.element_spec
        assert [x.tolist() for x in ds] == [1, [2, 3]]


def test_text_and_none_have_a_place_in_a_signature():
    signature = ArraySpec((), str), ArraySpec((None,), bytes), None
    ds = Dataset.from_generator(lambda: iter([("a", [b"\0"], None)]), output_signature=signature)
    ((text, raw, none),) = ds
    assert (text, raw.tolist(), none) == ("a", [b"\0"], None)
    assert ds.element_spec == signature
    tensor = SimpleNamespace(shape=[], dtype=SimpleNamespace(as_numpy_dtype=object))
    text = Dataset.from_generator(lambda: iter([b"a"]), output_signature=tensor)
    assert (list(text), text.element_spec) == ([b"a"], ArraySpec((), bytes))


@pytest.mark.parametrize(
    ("element", "signature"),
    [
        ([1, 2], ArraySpec((3,), np.int32)),
        ([1, 2], ArraySpec((), np.int32)),
        (1, ArraySpec((None,), np.int32)),
        ("a", ArraySpec((), np.float32)),
        (object(), ArraySpec((), np.float32)),
        ((1, 2), ArraySpec((), np.int32)),
        (1, (ArraySpec((), np.int32), ArraySpec((), np.int32))),
        ({"a": 1}, {"b": ArraySpec((), np.int32)}),
        (["a"], ArraySpec((), str)),
    ],
)
def test_elements_that_do_not_fit_the_signature(element, signature):
    ds = Dataset.from_generator(lambda: iter([element]), output_signature=signature)
    with pytest.raises(UsageError, match="`output_signature`") as refused:
        list(ds)
    assert "\n" not in str(refused.value)


def test_a_generator_is_closed_when_its_iterator_is_dropped():
    closed = []

    def generator():
        try:
            yield from range(9)
        finally:
            closed.append(True)

    iterator = iter(Dataset.from_generator(generator).batch(2))
    next(iterator)
    del iterator
    assert closed == [True]


class Squares:
    """Rows by number, as Grain and torch have them."""

    def __len__(self):
        return 5

    def __getitem__(self, row):
        assert type(row) is int
        return {"x": [row, row], "y": row**2}


class ManySquares(Squares):
    """Rows fetched together, as torch does where it can."""

    def __getitems__(self, rows):
        return [{"x": [row, row], "y": row**2} for row in rows]


class Table(Squares):
    """Columns of many rows at once, as Hugging Face `datasets` has them."""

    def with_format(self, kind):  # one whose rows have neither columns to choose nor features
        assert kind == "numpy"
        return self

    def __getitem__(self, rows):
        array = np.array(rows)
        return {
            "x": np.stack([array, array], 1),
            "y": array**2,
            "name": np.array(["a"] * len(rows)),
        }


@pytest.mark.parametrize("source", [Squares, ManySquares, Table])
def test_rows_of_objects(source):
    ds = Dataset.from_source(source())
    assert len(ds) == 5
    assert [int(row["y"]) for row in ds.skip(1)] == [1, 4, 9, 16]
    batches = list(ds.shuffle(5, seed=1).batch(3))
    assert [len(batch["x"]) for batch in batches] == [3, 2]
    assert sorted(np.concatenate([b["y"] for b in batches]).tolist()) == [0, 1, 4, 9, 16]
    assert ds.element_spec["x"].shape == (2,)


def test_text_of_columns_is_text():
    ds = Dataset.from_source(Table())
    assert ds.element_spec["name"] == ArraySpec((), str)
    assert next(iter(ds.batch(2)))["name"].dtype == object


def test_an_object_without_rows_is_an_empty_data_set():
    ds = Dataset.from_source([])
    assert (list(ds), list(ds.batch(2)), len(ds)) == ([], [], 0)
    with pytest.raises(UsageError, match="data set is empty"):
        _ = ds.element_spec


@pytest.fixture
def folder(tmp_path):
    for name in ("b.txt", "a.txt", "c.csv"):
        (tmp_path / name).write_text("")
    return tmp_path


def names(ds):
    return [Path(name).name for name in ds]


def test_files_are_listed_in_one_order_everywhere(folder):
    ds = Dataset.list_files(str(folder / "*.txt"), shuffle=False)
    assert names(ds) == ["a.txt", "b.txt"]
    assert (len(ds), ds.element_spec) == (2, ArraySpec((), str))
    both = Dataset.list_files([str(folder / "*.csv"), folder / "*.txt"], shuffle=False)
    assert names(both) == ["c.csv", "a.txt", "b.txt"]
    assert names(Dataset.list_files(folder / "a.*")) == ["a.txt"]
    pattern = os.fsencode(folder / "b.*")
    several = (pattern for _ in range(1)), {pattern}, Dataset.from_tensor_slices([pattern])
    for given in (pattern, np.array(pattern, object), *several):
        assert names(Dataset.list_files(given)) == ["b.txt"]


def test_files_are_shuffled_anew_in_each_epoch(folder):
    for number in range(20):
        (folder / f"{number}.txt").write_text("")
    ds = Dataset.list_files(str(folder / "*"), seed=1)
    first, second = names(ds), names(ds)
    assert first != second
    assert sorted(first) == sorted(second) == sorted(path.name for path in folder.iterdir())


def test_a_pattern_matches_a_file(folder):
    with pytest.raises(UsageError, match=r"\*\.png"):
        Dataset.list_files([str(folder / "*.txt"), str(folder / "*.png")])
