"""The data set as a Python object: its length, its text, its iterators."""

import jax.numpy as jnp
import numpy as np
import pytest

import replicax as rx

Dataset = rx.data.Dataset


def numbers(ds):
    return [int(x) for x in ds]


def test_each_iterator_has_a_position_of_its_own():
    ds = Dataset.range(4)
    first, second = iter(ds), iter(ds)
    assert [int(next(first)), int(next(first)), int(next(second))] == [0, 1, 0]
    assert iter(first) is first
    assert numbers(first) == [2, 3]
    assert next(first, None) is None


def test_an_iterator_has_the_names_of_tf_data():
    iterator = iter(Dataset.range(2))
    assert int(iterator.get_next()) == 0
    assert iterator.element_spec == rx.data.ArraySpec((), np.int64)


@pytest.mark.parametrize(
    ("ds", "what"),
    [(Dataset.range(2).repeat(), "infinite"), (Dataset.range(2).filter(bool), "unknown")],
)
def test_a_length_is_known_and_finite(ds, what):
    with pytest.raises(TypeError, match=f"{what}.*cardinality"):
        len(ds)
    assert bool(ds)


def test_what_is_empty_is_not_nothing():
    assert bool(Dataset.range(0))


def test_its_text_shows_how_it_is_made_without_making_anything():
    ds = Dataset.zip(Dataset.range(0), Dataset.range(3)).map((1).__truediv__).batch(2)
    assert repr(ds) == "<Dataset Batch(Map(Zip(Range(), Range())))>"


def test_elements_as_arrays_of_numpy():
    ds = Dataset.range(2).map(lambda x: {"x": jnp.full(1, x), "y": (x, "a", None)})
    first, second = ds.as_numpy_iterator()
    assert type(second["x"]) is np.ndarray
    assert (second["x"].tolist(), second["y"]) == ([1], (1, "a", None))
