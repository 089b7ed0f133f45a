"""Files of CIFAR-10, tiny ones, in both versions; and files that are something else."""

from __future__ import annotations

import io
import os
import pickle
import re

import numpy as np
import pytest

import replicax as rx
from replicax._tools.compare import _data
from replicax._tools.compare._cifar import read_cifar10
from replicax.report import Settings

BATCHES = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]


def rows_of(batch):
    """Two rows of 3072 bytes for the batch of that number: planes of `batch`, 100 and 200."""
    planes = [[batch] * 1024, [100] * 1024, [200] * 1024]
    return np.array([planes, planes], np.uint8).reshape(2, 3072)


def write_pickles(folder, *, as_bytes=False, protocol=2, labels=(3, 9)):
    folder.mkdir(exist_ok=True)
    for number, name in enumerate(BATCHES):
        batch = {"data": rows_of(number), "labels": list(labels), "batch_label": name}
        if as_bytes:
            batch = {key.encode(): value for key, value in batch.items()}
        (folder / name).write_bytes(pickle.dumps(batch, protocol=protocol))


def write_binary(folder):
    folder.mkdir(exist_ok=True)
    for number, name in enumerate(BATCHES):
        records = np.insert(rows_of(number), 0, [3, 9], axis=1)
        (folder / f"{name}.bin").write_bytes(records.tobytes())


def assert_is_what_was_written(loaded):
    (images, classes), (test_images, test_classes) = loaded
    assert images.shape == (10, 32, 32, 3)
    # The red plane holds the number of the batch, green and blue are 100 and 200.
    assert images[:, 31, 7].tolist() == [[i // 2, 100, 200] for i in range(10)]
    assert classes.tolist() == [3, 9] * 5
    assert test_images[:, 0, 0].tolist() == [[5, 100, 200]] * 2
    assert test_classes.tolist() == [3, 9]


def load_pickled(tmp_path, content):
    """Read a folder whose first batch is `content`."""
    write_pickles(tmp_path)
    (tmp_path / "data_batch_1").write_bytes(content)
    return read_cifar10(tmp_path)


@pytest.mark.parametrize("as_bytes", [False, True])
@pytest.mark.parametrize("protocol", [2, pickle.HIGHEST_PROTOCOL])
def test_the_python_version(tmp_path, as_bytes, protocol):
    write_pickles(tmp_path, as_bytes=as_bytes, protocol=protocol)
    assert_is_what_was_written(read_cifar10(tmp_path))


def test_a_pickle_of_python_2(tmp_path):
    # As Python 2 wrote it: byte strings as text, the array by _reconstruct of numpy.core.
    content = io.BytesIO()
    content.write(b"\x80\x02}(U\x04datacnumpy.core.multiarray\n_reconstruct\n")
    content.write(b"cnumpy\nndarray\nK\x00\x85U\x01b\x87R(K\x01K\x02M\x00\x0c\x86")
    content.write(b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xff")
    content.write(b"J\xff\xff\xff\xffK\x00tb\x89T\x00\x18\x00\x00" + rows_of(0).tobytes() + b"tb")
    content.write(b"U\x06labels](K\x03K\x09eu.")
    assert_is_what_was_written(load_pickled(tmp_path, content.getvalue()))


def test_labels_may_be_numbers_of_numpy(tmp_path):
    write_pickles(tmp_path, labels=[np.int64(3), np.int64(9)])
    assert_is_what_was_written(read_cifar10(tmp_path))


def test_the_binary_version(tmp_path):
    write_binary(tmp_path)
    assert_is_what_was_written(read_cifar10(tmp_path))


@pytest.mark.parametrize(
    ("write", "name"),
    [(write_pickles, "cifar-10-batches-py"), (write_binary, "cifar-10-batches-bin")],
)
def test_the_files_may_be_in_the_folder_of_the_archive(tmp_path, write, name):
    write(tmp_path / name)
    assert_is_what_was_written(read_cifar10(tmp_path))


def test_a_folder_becomes_a_dataset(tmp_path):
    write_binary(tmp_path)
    data = _data.load(Settings(dataset="cifar10", data_dir=str(tmp_path)))
    assert data.train_inputs.shape == (10, 32, 32, 3)
    assert data.train_inputs[0, 0, 0].tolist()[1:] == [np.float32(100 / 255), np.float32(200 / 255)]


@pytest.mark.parametrize(
    ("name", "state"),
    [(".", "without test_batch or"), ("absent", "not a folder, so no test_batch")],
)
def test_a_folder_without_the_files_is_refused(tmp_path, name, state):
    with pytest.raises(
        rx.errors.UsageError,
        match=rf"The folder must hold the files of CIFAR-10\. Received: .*, {state}",
    ):
        read_cifar10(tmp_path / name)


def test_missing_files_are_named(tmp_path):
    write_pickles(tmp_path)
    (tmp_path / "data_batch_2").unlink()
    (tmp_path / "data_batch_4").unlink()
    with pytest.raises(
        rx.errors.UsageError,
        match="All six files of CIFAR-10 must be there. "
        "Received: a folder without data_batch_2, data_batch_4",
    ):
        read_cifar10(tmp_path)


@pytest.mark.parametrize(
    "content",
    [b"", b"<html>", pickle.dumps([1, 2]), pickle.dumps({"data": rows_of(0)}), pickle.dumps(None)],
)
def test_what_is_no_batch_is_refused(tmp_path, content):
    with pytest.raises(
        rx.errors.UsageError,
        match=r"must be a pickled dict with 'data' and 'labels'\. Received: data_batch_1, ",
    ):
        load_pickled(tmp_path, content)


class Harmful:
    """Would make a file if it were unpickled."""

    def __init__(self, path):
        self._path = path

    def __reduce__(self):
        return os.mkdir, (self._path,)


class Hidden:
    """Would look up a harmless-looking built-in function."""

    def __reduce__(self):
        return getattr, (1, "real")


@pytest.mark.parametrize("protocol", [0, 2, pickle.HIGHEST_PROTOCOL])
def test_a_pickle_cannot_run_a_program(tmp_path, protocol):
    made = tmp_path / "made"
    content = pickle.dumps({"data": Harmful(str(made)), "labels": []}, protocol=protocol)
    with pytest.raises(
        rx.errors.UsageError,
        match=rf"may hold arrays and plain Python values only\. .* {os.mkdir.__module__}\.mkdir",
    ):
        load_pickled(tmp_path, content)
    assert not made.exists()


def test_a_pickle_cannot_use_built_in_functions(tmp_path):
    with pytest.raises(rx.errors.UsageError, match=r"a pickle that refers to builtins\.getattr"):
        load_pickled(tmp_path, pickle.dumps(Hidden()))


@pytest.mark.parametrize(
    "batch",
    [
        {"data": rows_of(0), "labels": [3]},
        {"data": rows_of(0), "labels": [3, 10]},
        {"data": rows_of(0), "labels": [3, -1]},
        {"data": rows_of(0), "labels": [3.0, 9.0]},
        {"data": rows_of(0).astype(np.float32), "labels": [3, 9]},
        {"data": rows_of(0)[:, :784], "labels": [3, 9]},
    ],
)
def test_arrays_of_another_kind_are_refused(tmp_path, batch):
    shape = re.escape(str(batch["data"].shape))
    with pytest.raises(
        rx.errors.UsageError,
        match=rf"CIFAR-10 must have rows of 3072 bytes .*Received: data_batch_1 .*{shape}",
    ):
        load_pickled(tmp_path, pickle.dumps(batch))


@pytest.mark.parametrize("size", [0, 3072, 3074])
def test_a_binary_batch_must_be_whole_records(tmp_path, size):
    write_binary(tmp_path)
    (tmp_path / "test_batch.bin").write_bytes(bytes(size))
    with pytest.raises(
        rx.errors.UsageError,
        match="A binary batch of CIFAR-10 must be records of 3073 bytes. "
        f"Received: test_batch.bin with {size} bytes",
    ):
        read_cifar10(tmp_path)
