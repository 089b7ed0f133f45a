"""CSV files: types, defaults, quotation marks, and rows that do not fit."""

import gzip
import itertools
import pickle

import numpy as np
import pytest

import replicax as rx
from replicax.data._formats.csv import CsvFormat

NUMBERS = [np.int32, np.int32]


@pytest.fixture
def read(tmp_path):

    def read(text, record_defaults, start=None, **options):
        path = tmp_path / "file.csv"
        path.write_bytes(text.encode())
        form = CsvFormat(record_defaults, **options)
        return [row for row, _ in form.records(str(path), start)]

    return read


@pytest.mark.parametrize(
    ("default", "field", "value"),
    [
        (np.int32, "-7", np.int32(-7)),
        (np.int64, "3000000000", np.int64(3_000_000_000)),
        (np.float32, "4.28E10", np.float32(4.28e10)),
        (np.float64, "0.1", np.float64(0.1)),
        (int, "+5", np.int32(5)),
        (float, "1e39", np.float32("inf")),
        (np.dtype("float32"), "nan", np.float32("nan")),
        (str, "ä", "ä"),
        (np.str_, "x", "x"),
        (5, "7", np.int32(7)),
        (0.5, " 7 ", np.float32(7)),
        ("none", " x ", " x "),
        ([0], "7", np.int32(7)),
        (np.int64(0), "7", np.int64(7)),
        (np.zeros(1), "0.1", np.float64(0.1)),
        (np.zeros(0, np.float32), "2", np.float32(2)),
    ],
)
def test_a_field_has_the_type_of_its_column(read, default, field, value):
    ((found,),) = read(field + "\n", [default])
    np.testing.assert_equal(found, value)
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("default", "value"),
    [
        (5, np.int32(5)),
        (0.5, np.float32(0.5)),
        ("none", "none"),
        ([7], np.int32(7)),
        (2**40, np.int64(2**40)),
        (1e39, np.float32("inf")),
        (np.float64(0.1), np.float64(0.1)),
        (np.array([3], np.int64), np.int64(3)),
    ],
)
def test_a_default_stands_for_an_empty_or_missing_field(read, default, value):
    rows = read(',1\n"",1\nNA,1\n', [default, np.int32], na_value="NA")
    assert rows == [(value, 1)] * 3
    assert type(rows[0][0]) is type(value)


def test_quotation_marks_hold_delimiters_line_ends_and_themselves(read):
    assert read('"a""b","c,\r\nd"\r\n1,2\r\n', [str, str]) == [('a"b', "c,\r\nd"), ("1", "2")]


def test_a_header_is_passed_over(read):
    assert read('a,"b\nc"\n1,2\n', NUMBERS, header=True) == [(1, 2)]
    assert read("a,b\n", NUMBERS, header=True) == []


def test_a_byte_order_mark_is_no_part_of_the_first_field(read):
    assert read("\ufeff1,2\n", NUMBERS) == [(1, 2)]


def test_an_empty_line_is_a_row_with_one_empty_field(read):
    # As in TensorFlow.
    assert read("1\n\n3\n", [7]) == [(1,), (7,), (3,)]


@pytest.mark.parametrize("compression", [None, "GZIP"])
@pytest.mark.parametrize("header", [False, True])
def test_reading_goes_on_at_every_position(tmp_path, header, compression):
    text = b'name,"of\ncolumns"\na,"1\n2"\n\xc3\xa4,3\r\n"b",""\n'
    path = tmp_path / "file.csv"
    path.write_bytes(gzip.compress(text) if compression else text)
    form = CsvFormat([str, "4"], header=header, compression=compression)
    whole = list(form.records(str(path), None))
    assert [row for row, _ in whole][-3:] == [("a", "1\n2"), ("ä", "3"), ("b", "4")]
    for number, (_, position) in enumerate(whole, 1):
        assert list(form.records(str(path), position)) == whole[number:]


def test_lines_are_counted_from_where_reading_goes_on(read):
    with pytest.raises(rx.errors.CorruptRecord, match="Column 1 of line 3"):
        read("1,2\n3,4\n5,x\n", NUMBERS, start=(4, 1))


def test_columns_at_once_hold_what_single_values_would(read):
    rng = np.random.default_rng(0)
    numbers = [*map(repr, (rng.normal(size=300) * 10.0 ** rng.integers(-40, 40, 300)).tolist())]
    found = read("".join(f"{n},{n},{i},,NA\n" for i, n in enumerate(numbers)),
                 [np.float32, np.float64, np.int64, 7, "none"], na_value="NA")  # fmt: skip
    with np.errstate(over="ignore"):
        wanted = [(np.float32(n), np.float64(n), i, 7, "none") for i, n in enumerate(numbers)]
    assert found == wanted
    assert [type(value) for value in found[299]] == [
        np.float32,
        np.float64,
        np.int64,
        np.int32,
        str,
    ]


def test_rows_before_one_that_is_wrong_come_first(tmp_path):
    for wrong in ("x,1", "1", '"1"x,2'):
        path = tmp_path / "file.csv"
        path.write_text("1,2\n" * 300 + wrong + "\n3,4\n")
        rows = CsvFormat(NUMBERS).records(str(path), None)
        assert [position for _, position in itertools.islice(rows, 300)][-1] == (1200, 300)
        with pytest.raises(rx.errors.CorruptRecord, match="(?i)line 301"):
            next(rows)


@pytest.mark.parametrize("field", ["x", "1.0", "1_0", "3000000000", "1 2"])
def test_a_field_of_another_type_is_an_error(read, field):
    with pytest.raises(rx.errors.CorruptRecord, match="Column 1 of line 2") as error:
        read(f"1,2\n3,{field}\n", NUMBERS)
    assert f"file.csv' is {field!r}, which is no int32" in str(error.value)


def test_a_float_has_no_underscores_either(read):
    with pytest.raises(rx.errors.CorruptRecord, match="is '1_0', which is no float32"):
        read("1_0\n", [np.float32])


@pytest.mark.parametrize("text", [",2\n", "NA,2\n", '"",2\n', "\n"])
def test_a_column_without_a_default_must_have_a_value(read, text):
    defaults = NUMBERS[: text.count(",") + 1]
    with pytest.raises(rx.errors.CorruptRecord, match="record_defaults") as error:
        read(text, defaults, na_value="NA")
    assert "Column 0 of line 1" in str(error.value)


@pytest.mark.parametrize(
    ("text", "options"), [("1\n", {}), ("1,2,3\n", {}), ("1\n", {"select_cols": [0, 1]})]
)
def test_a_row_with_other_fields_is_an_error(read, text, options):
    with pytest.raises(rx.errors.CorruptRecord, match="fields.*record_defaults") as error:
        read(text, NUMBERS, **options)
    assert f"file.csv' has {text.count(',') + 1} fields" in str(error.value)


@pytest.mark.parametrize("text", ['1,"2\n', '"1"1,2\n', "1,2\r3,4\n"])
def test_a_row_that_is_no_csv_is_an_error(read, text):
    with pytest.raises(rx.errors.CorruptRecord, match="line 2.*use_quote_delim") as error:
        read("1,2\n" + text, NUMBERS)
    assert "line 2 of" in str(error.value)


def test_a_file_without_its_header_is_an_error(read):
    with pytest.raises(rx.errors.CorruptRecord, match="header=False"):
        read("", NUMBERS, header=True)


@pytest.mark.parametrize("default", [bool, np.int8, "é".encode(), None, [1, 2], True, [["a", "b"]]])
def test_columns_have_five_types_and_one_default(default):
    with pytest.raises(rx.errors.UsageError, match=r"record_defaults\[1\]") as error:
        CsvFormat([int, default])
    assert f"got {default!r}" in str(error.value)


def test_a_format_is_plain_data():
    form = CsvFormat([int, "x", np.zeros(1)], select_cols=[0, 1, 3])
    assert pickle.loads(pickle.dumps(form)) == form
    assert CsvFormat(form.record_defaults, select_cols=form.select_cols) == form
    assert hash(form) == hash(pickle.loads(pickle.dumps(form)))
