"""`make_csv_dataset`: names, types, labels, epochs."""

import gzip
import zlib

import numpy as np
import pytest

import replicax as rx
from replicax.data._readers import make_csv_dataset

PLAIN = {"num_epochs": 1, "shuffle": False}


@pytest.fixture
def write(tmp_path):
    """Write CSV files, and give the pattern that matches them."""

    def write(*texts):
        for number, text in enumerate(texts):
            (tmp_path / f"{number}.csv").write_text(text)
        return str(tmp_path / "*.csv")

    return write


def columns(dataset):
    batches = list(dataset)
    return {name: np.concatenate([b[name] for b in batches]).tolist() for name in batches[0]}


def test_a_batch_is_a_dict_of_columns(write):
    pattern = write("\ufeffname,x,y\na,1,0.5\nb,2,1\nc,3,2\n")
    first, second = make_csv_dataset(pattern, 2, **PLAIN)
    assert list(first) == ["name", "x", "y"]
    assert [first[name].tolist() for name in first] == [["a", "b"], [1, 2], [0.5, 1]]
    assert [first[name].dtype for name in first] == [object, np.int32, np.float32]
    assert second["x"].tolist() == [3]


def test_a_label_is_taken_out(write):
    dataset = make_csv_dataset(write("x,y\n1,2\n3,4\n"), 2, label_name="x", **PLAIN)
    ((features, label),) = dataset
    assert list(features) == ["y"]
    assert label.tolist() == [1, 3]


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (["1", "-2"], np.int32),
        (["1", "3000000000"], np.int64),
        (["3000000000", "1"], np.int64),
        (["1", "0.5"], np.float32),
        (["0.5", "1"], np.float32),
        (["1", "nan"], np.float32),
        (["inf", "1e400"], np.float32),
        (["1e39", "1"], np.float64),
        (["1", "x"], object),
        (["1_0"], object),
        (["", "2"], np.int32),
        (["NA", "2.5"], np.float32),
        (["", "NA"], object),
    ],
)
def test_types_are_seen_from_the_rows(write, values, dtype):
    pattern = write("k,x\n" + "".join(f"0,{value}\n" for value in values))
    (batch,) = make_csv_dataset(pattern, len(values), na_value="NA", **PLAIN)
    assert batch["x"].dtype == dtype


def test_types_are_seen_from_the_first_rows_of_all_files(write):
    pattern = write("x\n1\n", "x\n2\n0.5\n")
    with pytest.raises(rx.errors.CorruptRecord, match="Column 0 of line 3.*'0.5'"):
        columns(make_csv_dataset(pattern, 1, num_rows_for_inference=2, **PLAIN))
    for count in (3, 100, None):
        dataset = make_csv_dataset(pattern, 1, num_rows_for_inference=count, **PLAIN)
        assert columns(dataset) == {"x": [1, 2, 0.5]}


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        ("x,y,z\n1,0.5,a\n,,\n", {}, {"x": [1, 0], "y": [0.5, 0], "z": ["a", ""]}),
        ("x,y,z\n1,2,3\n", {"select_columns": ["z", "x"]}, {"x": [1], "z": [3]}),
        ("x,y,z\n1,2,3\n", {"select_columns": [0, 2]}, {"x": [1], "z": [3]}),
        ("x,y,z\n1,2,3\n", {"select_columns": ["x", 2]}, {"x": [1], "z": [3]}),
        (
            "x,y,z\n1,2,3\n,5,6\n",
            {"select_columns": ["x", "z"], "column_defaults": [7.0, str]},
            {"x": [1.0, 7.0], "z": ["3", "6"]},
        ),
        ("1,2\n3,4\n", {"column_names": ["a", "b"], "header": False}, {"a": [1, 3], "b": [2, 4]}),
        ("1,2\n3,4\n", {"column_names": ["a", "b"]}, {"a": [3], "b": [4]}),
    ],
    ids=["missing", "by name", "by number", "by both", "defaults", "names", "names for others"],
)
def test_values_of_columns(write, text, options, expected):
    assert columns(make_csv_dataset(write(text), 2, **options, **PLAIN)) == expected


@pytest.mark.parametrize(("name", "pack"), [("GZIP", gzip.compress), ("ZLIB", zlib.compress)])
def test_compressed_files(tmp_path, name, pack):
    (tmp_path / "a").write_bytes(pack(b"x;y\n1;'\n"))
    options = {"field_delim": ";", "use_quote_delim": False, "compression_type": name}
    assert columns(make_csv_dataset(tmp_path / "a", 1, **options, **PLAIN)) == {
        "x": [1],
        "y": ["'"],
    }


def test_epochs_follow_each_other_without_end(write):
    dataset = make_csv_dataset(write("x\n1\n2\n3\n"), 2, shuffle=False)
    assert dataset.cardinality() < 0
    assert [batch["x"].tolist() for batch in dataset.take(3)] == [[1, 2], [3, 1], [2, 3]]


def test_a_number_of_epochs_ends_with_a_rest(write):
    dataset = make_csv_dataset(write("x\n1\n2\n3\n"), 4, shuffle=False, num_epochs=2)
    assert [batch["x"].tolist() for batch in dataset] == [[1, 2, 3, 1], [2, 3]]


def test_rows_are_shuffled_by_a_seed(write):
    pattern = write("x\n" + "".join(f"{n}\n" for n in range(50)), "x\n50\n51\n")
    first, again = (
        columns(make_csv_dataset(pattern, 10, num_epochs=1, shuffle_seed=3))["x"] for _ in range(2)
    )
    assert first == again
    assert first != sorted(first)
    assert sorted(first) == list(range(52))


def test_files_are_read_in_turn(write):
    pattern = write("x\n1\n2\n", "x\n3\n4\n")
    dataset = make_csv_dataset(pattern, 4, num_parallel_reads=2, **PLAIN)
    assert columns(dataset) == {"x": [1, 3, 2, 4]}


# fmt: off
REFUSED = {
    "`header`.*`column_names`": [(["1,2\n"], {"header": False})],
    "header of.*column_names": [(["x,y\n", "x,z\n"], {}), ([""], {}), (["x,y\n", ""], {})],
    r"\['x', 'x'\]": [(["x,x\n"], {})],
    "`select_columns`": [
        (["x,y\n"], {"select_columns": one}) for one in (["w"], [2], [-1], ["x", 0], [])
    ],
    "`column_defaults`": [
        (["x,y,z\n"], {"column_defaults": [1, 2]} | more)
        for more in ({}, {"select_columns": ["x"]})
    ],
    "`label_name`": [
        (["x,y\n1,2\n"], {"label_name": "w"}),
        (["x,y\n1,2\n"], {"label_name": "x", "select_columns": ["y"]}),
    ],
}  # fmt: on


@pytest.mark.parametrize(
    ("match", "texts", "options"),
    [(match, *one) for match, several in REFUSED.items() for one in several],
)
def test_refused(write, match, texts, options):
    with pytest.raises(rx.errors.UsageError, match=match):
        make_csv_dataset(write(*texts), 1, **options)
