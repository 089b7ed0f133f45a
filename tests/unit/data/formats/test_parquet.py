"""Parquet files: types, lists, blocks of rows; what has no counterpart in NumPy."""

import datetime
import decimal
import pickle

import numpy as np
import pyarrow as arrow
import pyarrow.parquet
import pytest

import replicax as rx
from replicax.data import _formats
from replicax.data._formats.parquet import ParquetFormat


@pytest.fixture
def write(tmp_path):
    def write(columns, **options):
        path = str(tmp_path / "file.parquet")
        arrow.parquet.write_table(arrow.table(columns), path, **options)
        return path

    return write


def elements(path, columns=None, start=None):
    return [row for row, _ in ParquetFormat(columns).records(path, start)]


def values(path, column="x"):
    return [row[column] for row in elements(path)]


@pytest.mark.parametrize(
    ("column", "wanted"),
    [
        (arrow.array([1, 2], arrow.int8()), [np.int8(1), np.int8(2)]),
        (arrow.array([1, 2], arrow.uint64()), [np.uint64(1), np.uint64(2)]),
        (arrow.array([0.5, None], arrow.float32()), [np.float32(0.5), np.float32("nan")]),
        (arrow.array([np.float16(0.5)]), [np.float16(0.5)]),
        (arrow.array([True, False]), [np.True_, np.False_]),
        (arrow.array(["ä", ""]), ["ä", ""]),
        (arrow.array(["ä"], arrow.large_string()), ["ä"]),
        (arrow.array(["a", "b", "a"]).dictionary_encode(), ["a", "b", "a"]),
        (arrow.array([b"\x00", b""]), [b"\x00", b""]),
        (arrow.array([b"ab"], arrow.binary(2)), [b"ab"]),
        (
            arrow.array([0, None], arrow.timestamp("ms")),
            [np.datetime64(0, "ms")] + [np.datetime64("NaT", "ms")],
        ),
        (arrow.array([datetime.date(2020, 1, 2)]), [np.datetime64("2020-01-02")]),
        (arrow.array([{"a": 1, "b": "x"}]), [{"a": np.int64(1), "b": "x"}]),
    ],
    ids=lambda value: str(value.type) if isinstance(value, arrow.Array) else "",
)
def test_a_value_is_numpys_counterpart(write, column, wanted):
    found = values(write({"x": column}))
    assert [type(value) for value in found] == [type(value) for value in wanted]
    np.testing.assert_equal(found, wanted)


@pytest.mark.parametrize(
    ("column", "wanted"),
    [
        (arrow.array([[1, 2], [], [3]]), [np.array([1, 2]), np.zeros(0, int), np.array([3])]),
        (arrow.array([[1.5]], arrow.large_list(arrow.float32())), [np.array([1.5], np.float32)]),
        (
            arrow.array([[1, 2], [3, 4]], arrow.list_(arrow.int8(), 2)),
            [np.array([1, 2], np.int8), np.array([3, 4], np.int8)],
        ),
        (arrow.array([["a", "b"], ["c"]]), [np.array(["a", "b"], object), np.array(["c"], object)]),
        (
            arrow.array([[[1, 2], [3, 4]], [[5, 6]]]),
            [np.array([[1, 2], [3, 4]]), np.array([[5, 6]])],
        ),
    ],
    ids=lambda value: str(value.type) if isinstance(value, arrow.Array) else "",
)
def test_a_list_is_an_array(write, column, wanted):
    found = values(write({"x": column}))
    assert len(found) == len(wanted)
    for value, array in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(value, array)
        assert value.dtype == array.dtype


def test_a_list_is_an_array_of_its_own(write):
    first, second = values(write({"x": [[1], [2]]}))
    first[0] = 7
    assert second.tolist() == [2]
    assert first.base is None


def test_columns_can_be_chosen(write):
    path = write({"x": [1], "y": [2], "z": [{"a": 3, "b": 4}]})
    assert elements(path, ["y"]) == [{"y": 2}]
    assert elements(path, ("x", "z.b")) == [{"x": 1, "z": {"b": 4}}]


@pytest.mark.parametrize("block", [1, 3, 100])
def test_reading_goes_on_at_every_position(write, monkeypatch, block):
    monkeypatch.setattr(_formats.parquet, "_BLOCK_ROWS", block)
    path = write({"x": list(range(11)), "l": [[n] * n for n in range(11)]}, row_group_size=4)
    form = ParquetFormat()
    whole = list(form.records(path, None))
    assert [row["x"] for row, _ in whole] == list(range(11))
    assert [row["l"].tolist() for row, _ in whole] == [[n] * n for n in range(11)]
    assert [position for _, position in whole][3:6] == [(0, 4), (1, 1), (1, 2)]
    for number, (_, position) in enumerate(whole, 1):
        rest = list(form.records(path, pickle.loads(pickle.dumps(position))))
        assert [(row["x"], place) for row, place in rest] == [
            (row["x"], place) for row, place in whole[number:]
        ]
        assert [row["l"].tolist() for row, _ in rest] == [[n] * n for n in range(number, 11)]


def test_blocks_of_large_rows_have_few_rows(write, monkeypatch):
    monkeypatch.setattr(_formats.parquet, "_BLOCK_BYTES", 5000)
    path = write(
        {"x": [bytes([n]) * 1000 for n in range(20)]}, compression="NONE", use_dictionary=False
    )
    with arrow.parquet.ParquetFile(path) as file:
        assert 1 <= _formats.parquet._rows_per_block(file.metadata.row_group(0)) <= 5
    assert [len(row["x"]) for row in elements(path)] == [1000] * 20


@pytest.mark.parametrize(
    "column",
    [
        arrow.array([1, None]),
        arrow.array([True, None]),
        arrow.array(["a", None]),
        arrow.array([[1], None]),
        arrow.array([[1, None]]),
        arrow.array([{"a": 1}, None]),
        arrow.array([None, None]),
    ],
    ids=lambda column: str(column.type),
)
def test_a_missing_value_is_an_error(write, column):
    path = write({"y": [0] * len(column), "x": column})
    with pytest.raises(rx.errors.CorruptRecord, match="column 'x'") as error:
        elements(path)
    assert f"{path!r}, column 'x'" in str(error.value)


@pytest.mark.parametrize(
    "column",
    [
        arrow.array([decimal.Decimal("1.5")]),
        arrow.array([datetime.time(1, 2)]),
        arrow.array([[("a", 1)]], arrow.map_(arrow.string(), arrow.int64())),
    ],
    ids=lambda column: str(column.type),
)
def test_a_type_without_a_counterpart_is_an_error(write, column):
    with pytest.raises(rx.errors.UsageError, match="column 'x', of type") as error:
        elements(write({"x": column}))
    assert f"column 'x', of type {str(column.type)[:5]}" in str(error.value)


def test_inner_lists_have_one_length(write):
    with pytest.raises(rx.errors.UsageError, match="inner lists.*column 'x'"):
        elements(write({"x": [[[1, 2], [3]]]}))


@pytest.mark.parametrize("column", ["y", "y.z", ""])
def test_a_column_that_is_not_there_is_named(write, column):
    path = write({"x": [1]})
    with pytest.raises(rx.errors.UsageError, match=r"\['x'\]") as error:
        elements(path, ["x", column])
    assert f"{column!r} in {path!r}" in str(error.value)


@pytest.mark.parametrize("damage", ["cut off", "overwritten", "text"])
def test_a_damaged_file_is_an_error(write, damage):
    path = write({"x": list(range(1000))})
    with open(path, "rb") as file:
        contents = file.read()
    middle = contents[:20] + b"\xff" * 100 + contents[120:]
    contents = {"cut off": contents[:-30], "overwritten": middle, "text": b"hello"}[damage]
    with open(path, "wb") as file:
        file.write(contents)
    with pytest.raises(rx.errors.CorruptRecord, match="file.parquet") as error:
        elements(path)
    assert repr(path) in str(error.value)
