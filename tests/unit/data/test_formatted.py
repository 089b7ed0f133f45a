"""Rows of Hugging Face `datasets`: what their owner set is what a data set gives."""

import numpy as np
import pytest
from formatted_rows import some_rows

from replicax._core.errors import UsageError
from replicax._input.source import as_dataset
from replicax.data import Dataset


def doubled(batch):
    return {"twice": [2 * n for n in batch["n"]]}


def by_number(source):
    (batch,) = Dataset.from_source(source).batch(3)
    return batch


def one_by_one(source):
    rows = list(as_dataset(source))
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


@pytest.mark.parametrize("read", [by_number, one_by_one])
class TestEveryWayToRead:
    def test_columns_are_chosen(self, read):
        assert list(read(some_rows().with_format(columns=["n"]))) == ["n"]
        assert list(read(some_rows().with_format("numpy", columns=["x"]))) == ["x"]
        assert list(read(some_rows().with_format("pandas", columns=["n"]))) == ["n"]

    def test_all_columns_are_put_out(self, read):
        rows = some_rows().with_format(columns=["n"], output_all_columns=True)
        assert sorted(read(rows)) == ["n", "t", "x"]
        arrays = some_rows().with_format("numpy", columns=["n"], output_all_columns=True)
        assert read(arrays)["x"].tolist() == [[1.0, 2.0]] * 3

    def test_rows_are_transformed(self, read):
        assert read(some_rows().with_transform(doubled))["twice"].tolist() == [2, 4, 6]

    def test_a_transform_sees_the_columns_it_was_given(self, read):
        rows = some_rows().with_transform(lambda batch: batch, columns=["n"])
        assert list(read(rows)) == ["n"]

    def test_types_are_those_of_the_features(self, read):
        batch = read(some_rows())
        assert {name: array.dtype.name for name, array in batch.items()} == {
            "n": "int8",
            "t": "float64",
            "x": "float32",
        }
        assert np.diff(batch["t"]).tolist() == [1.0, 1.0]  # float32 counts these in steps of 128

    def test_a_type_that_the_format_says_is_kept(self, read):
        rows = some_rows().with_format("numpy", columns=["n"], dtype=np.float64)
        assert read(rows)["n"].dtype == np.float64


def test_a_stream_keeps_its_own_format():
    class Stream:
        _formatting = type("Format", (), {"format_type": "jax"})

        def with_format(self, kind):
            raise AssertionError(kind)

        def __iter__(self):
            return iter([{"n": np.arange(2)}])

    assert [row["n"].tolist() for row in as_dataset(Stream())] == [[0, 1]]


@pytest.mark.parametrize("read", [by_number, one_by_one])
def test_integers_that_are_missing_are_refused(read):
    rows = some_rows()
    rows.columns["n"][1] = np.nan  # as NumPy's format gives a null
    with pytest.raises(UsageError, match="'n'"):
        read(rows)
    assert read(rows.with_format(columns=["t"]))["t"].shape == (3,)
