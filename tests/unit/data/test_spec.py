"""`ArraySpec`, and the rows of batches put together and cut."""

import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx
from replicax.data._spec import RowBuffer, joined, num_rows, split_rows

Dataset = rx.data.Dataset
ArraySpec = rx.data.ArraySpec
UsageError = rx.errors.UsageError


@pytest.mark.parametrize(
    ("dtype", "kept", "text"),
    [
        ("float32", np.dtype("float32"), "float32"),
        (np.int64, np.dtype("int64"), "int64"),
        (jnp.bfloat16, np.dtype(jnp.bfloat16), "bfloat16"),
        (bool, np.dtype(bool), "bool"),
        (str, str, "str"),
        (bytes, bytes, "bytes"),
        (np.str_, str, "str"),
        ("S3", bytes, "bytes"),
        (object, np.dtype(object), "object"),
    ],
)
def test_types_of_a_spec(dtype, kept, text):
    spec = ArraySpec((None, 2), dtype)
    assert spec.dtype == kept
    assert repr(spec) == f"ArraySpec(shape=(None, 2), dtype={text})"
    assert spec == ArraySpec((None, 2), kept)
    assert hash(spec) == hash(ArraySpec((None, 2), kept))


@pytest.mark.parametrize(
    ("elements", "spec"),
    [
        ([np.zeros(2), np.zeros(3)], ArraySpec((None,), np.float64)),  # as tf.data
        ([np.zeros((2, 3)), np.ones((2, 4))], ArraySpec((2, None), np.float64)),
        ([np.zeros(2), np.zeros((2, 1))], ArraySpec(None, np.float64)),
        ([np.int32(1), np.float32(1)], ArraySpec((), np.float64)),
        (["a", "b"], ArraySpec((), str)),
        (["a", b"b"], ArraySpec((), object)),
        ([(1, None), (2, None)], (ArraySpec((), np.int32), None)),
    ],
)
def test_the_spec_of_several_data_sets_is_that_of_all(elements, spec):
    first, second = (Dataset.from_tensors(element) for element in elements)
    assert first.concatenate(second).element_spec == spec
    assert Dataset.sample_from_datasets([first, second]).element_spec == spec
    assert Dataset.choose_from_datasets([first, second], Dataset.range(2)).element_spec == spec


def test_data_sets_of_different_structures_have_no_spec():
    both = Dataset.from_tensors((1, 2)).concatenate(Dataset.from_tensors(1))
    with pytest.raises(UsageError, match="dtype=int32"):
        _ = both.element_spec


def test_parts_without_elements_say_nothing_of_the_spec():
    nothing = Dataset.from_generator(lambda: iter(()))
    some = Dataset.from_tensors(1.5)
    assert nothing.concatenate(some).element_spec == ArraySpec((), np.float32)
    with pytest.raises(UsageError, match="data set is empty"):
        _ = nothing.concatenate(nothing).element_spec


def test_what_is_no_array_has_a_spec_too():
    (element,) = Dataset.range(1).map(lambda _: frozenset())
    assert element == frozenset()
    assert Dataset.range(1).map(lambda _: frozenset()).element_spec == ArraySpec((), object)


BATCH = {"x": np.arange(6).reshape(3, 2), "y": (np.array(["a", "b", "c"], object), None)}


def test_rows_of_a_nest():
    assert num_rows(BATCH) == 3
    rows = [(row["x"].tolist(), row["y"]) for row in split_rows(BATCH)]
    assert rows == [([0, 1], ("a", None)), ([2, 3], ("b", None)), ([4, 5], ("c", None))]
    both = joined([BATCH, BATCH])
    assert both["x"].tolist() == [[0, 1], [2, 3], [4, 5]] * 2
    assert both["y"][0].tolist() == [*"abc", *"abc"]
    assert joined([BATCH]) is BATCH


def test_rows_go_through_a_buffer_in_order():
    buffer = RowBuffer([np.arange(3)])
    buffer.push(np.arange(3, 4))
    buffer.push(np.arange(4, 4))
    buffer.push(np.arange(4, 9))
    assert buffer.rows == 9
    taken = [buffer.pull(rows).tolist() for rows in (2, 3, 1)]
    assert taken == [[0, 1], [2, 3, 4], [5]]
    assert (buffer.rows, [b.tolist() for b in buffer.contents()]) == (3, [[6, 7, 8]])
    assert (buffer.pull(10).tolist(), buffer.rows, buffer.contents()) == ([6, 7, 8], 0, [])
