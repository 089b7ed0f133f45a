"""Data sets of files: which files, in which order, resumed anywhere, divided between workers."""

import pathlib
import pickle
import sys

import numpy as np
import pyarrow as arrow
import pyarrow.parquet
import pytest

import replicax as rx
from replicax.data._dataset import Dataset
from replicax.data._formats.tfrecord import TFRecordWriter
from replicax.data._nodes.files import FileRecords
from replicax.data._nodes.share import files_of, with_file_shard
from replicax.data._readers import CsvDataset, ParquetDataset, TextLineDataset, TFRecordDataset

LINES = [["a1", "a2", "a3"], [], ["c1"], ["d1", "d2"]]
ALL = [line for lines in LINES for line in lines]


@pytest.fixture
def paths(tmp_path):
    paths = [str(tmp_path / f"{name}.txt") for name in "abcd"]
    for path, lines in zip(paths, LINES, strict=True):
        pathlib.Path(path).write_text("".join(line + "\n" for line in lines))
    return paths


def check_resumes_everywhere(dataset):
    """Read in two parts, cut at every place, and compare with one pass."""
    whole = list(dataset)
    for taken in range(len(whole) + 1):
        iterator = iter(dataset)
        for _ in range(taken):
            next(iterator)
        state = pickle.loads(pickle.dumps(iterator.get_state()))
        again = iter(dataset)
        again.set_state(state)
        np.testing.assert_equal(list(again), whole[taken:])


@pytest.mark.parametrize("as_path", [str, pathlib.Path, np.str_, str.encode])
def test_one_path_will_do(paths, as_path):
    assert list(TextLineDataset(as_path(paths[0]))) == LINES[0]


@pytest.mark.parametrize("several", [tuple, np.array, lambda paths: map(pathlib.Path, paths)])
def test_several_paths_come_in_any_sequence(paths, several):
    assert list(TextLineDataset(several(paths))) == ALL


def test_a_data_set_of_paths_is_read_in_its_order(paths):
    names = Dataset.from_tensor_slices(paths[::-1])
    assert list(TextLineDataset(names)) == ["d1", "d2", "c1", "a1", "a2", "a3"]


def test_listed_files_are_read(paths, tmp_path):
    dataset = TextLineDataset(Dataset.list_files(str(tmp_path / "*.txt"), shuffle=False))
    assert list(dataset) == ALL
    assert isinstance(dataset.node, FileRecords)
    assert sorted(TextLineDataset(Dataset.list_files(str(tmp_path / "*.txt"), seed=1))) == ALL


def test_options_of_a_data_set_of_paths_stay(paths):
    options = rx.data.Options()
    options.deterministic = False
    listed = Dataset.list_files(paths, shuffle=False).with_options(options)
    assert TextLineDataset(listed).options().deterministic is False


def test_files_can_be_read_in_turn(paths):
    wanted = ["a1", "c1", "a2", "d1", "a3", "d2"]  # "b" is empty; "d" follows "c"
    assert list(TextLineDataset(paths, num_parallel_reads=3)) == wanted
    assert list(TextLineDataset(paths, num_parallel_reads=1)) == ALL
    assert sorted(TextLineDataset(paths, num_parallel_reads=rx.data.AUTOTUNE)) == ALL


@pytest.mark.parametrize("parallel", [None, 2])
@pytest.mark.parametrize("shuffled", [False, True])
def test_reading_goes_on_at_every_element(paths, parallel, shuffled):
    listed = Dataset.list_files(paths, shuffle=shuffled, seed=3)
    dataset = TextLineDataset(listed, num_parallel_reads=parallel)
    if not shuffled:
        check_resumes_everywhere(dataset)
        return
    iterator = iter(dataset)  # another order in each epoch, so this one is read to the end
    first = [next(iterator) for _ in range(2)]
    state = iterator.get_state()
    rest = list(iterator)
    again = iter(dataset)
    again.set_state(state)
    assert list(again) == rest
    assert sorted(first + rest) == ALL


@pytest.mark.parametrize("parallel", [None, 2])
@pytest.mark.parametrize("as_dataset", [False, True])
def test_workers_divide_the_files(paths, parallel, as_dataset):
    names = Dataset.list_files(paths, shuffle=False) if as_dataset else paths
    node = TextLineDataset(names, num_parallel_reads=parallel).batch(2).node
    assert files_of(node) == tuple(paths)
    parts = [Dataset(with_file_shard(node, 2, index)).unbatch() for index in range(2)]
    assert [sorted(part) for part in parts] == [["a1", "a2", "a3", "c1"], ["d1", "d2"]]


def test_records(tmp_path):
    paths = [tmp_path / name for name in "ab"]
    for path in paths:
        with TFRecordWriter(path, "ZLIB") as writer:
            for number in range(3):
                writer.write(f"{path.name}{number}\0".encode())
    dataset = TFRecordDataset(paths, compression_type="ZLIB")
    assert list(dataset) == [f"{name}{number}\0".encode() for name in "ab" for number in range(3)]
    assert next(iter(dataset.batch(2).skip(2))).tolist() == [b"b1\0", b"b2\0"]
    check_resumes_everywhere(dataset)


def test_rows_of_csv_files(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("name;x;y\na;1;0.5\nb;NA;2\n")
    options = {"header": True, "field_delim": ";", "na_value": "NA"}
    dataset = CsvDataset(path, [str, -1, np.float32], **options)
    assert list(dataset) == [("a", 1, 0.5), ("b", -1, 2.0)]
    check_resumes_everywhere(dataset)
    names, x, y = next(iter(dataset.batch(2)))
    assert (names.tolist(), x.tolist(), y.tolist()) == (["a", "b"], [1, -1], [0.5, 2])
    assert (x.dtype, y.dtype) == (np.int32, np.float32)
    assert list(CsvDataset(path, [float], select_cols=[2], **options)) == [(0.5,), (2.0,)]


def test_rows_of_parquet_files(tmp_path):
    for number in range(2):
        table = arrow.table({"x": [number, 5], "name": ["a", "b"], "l": [[1, 2], [3, 4]]})
        arrow.parquet.write_table(table, tmp_path / f"{number}.parquet", row_group_size=1)
    dataset = ParquetDataset([tmp_path / "0.parquet", tmp_path / "1.parquet"])
    assert [(row["x"], row["name"], row["l"].tolist()) for row in dataset] == [
        (0, "a", [1, 2]),
        (5, "b", [3, 4]),
        (1, "a", [1, 2]),
        (5, "b", [3, 4]),
    ]
    check_resumes_everywhere(dataset)
    (batch,) = dataset.batch(4)
    assert batch["l"].shape == (4, 2)
    assert list(ParquetDataset(tmp_path / "0.parquet", ["x"])) == [{"x": 0}, {"x": 5}]


@pytest.mark.parametrize(
    ("package", "extra", "read"),
    [
        ("PIL", "data", lambda folder: list(rx.data.image_dataset_from_directory(folder))),
        ("pyarrow", "parquet", lambda folder: list(ParquetDataset(folder / "a" / "0.png"))),
    ],
)
def test_a_missing_package_is_named_with_the_extra(tmp_path, monkeypatch, package, extra, read):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "0.png").touch()
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(rx.errors.UsageError, match=rf"{package}.*replicax\[{extra}\]"):
        read(tmp_path)


def test_a_program_derives_its_own_readers(paths):
    class Numbered(rx.data.TextLineDataset):
        def __init__(self, first, filename, **options):
            self.first = first
            super().__init__(filename, **options)

        def numbered(self):
            return self.map(lambda line: f"{self.first} {line}")

    own = Numbered(7, paths[0], num_parallel_reads=1)
    plain = list(rx.data.TextLineDataset(paths[0]))
    assert isinstance(own, rx.data.Dataset)
    assert list(own.numbered()) == [f"7 {line}" for line in plain]
    assert list(own.skip(1).batch(1).unbatch()) == plain[1:]
    assert type(own.skip(1)) is rx.data.Dataset


def test_a_data_set_is_written_as_records(tmp_path):
    path = tmp_path / "records"
    records = rx.data.Dataset.from_tensor_slices(["a", "é"]).map(lambda text: text + "b")
    rx.data.experimental.TFRecordWriter(path, "GZIP").write(records)
    assert list(rx.data.TFRecordDataset(path, "GZIP")) == [b"ab", "éb".encode()]
