"""TFRecord files: TensorFlow's bytes, both ways; every kind of damage."""

from __future__ import annotations

import struct
import sys
import tracemalloc

import google_crc32c
import pytest

import replicax as rx
from replicax.data import _formats
from replicax.data._formats.tfrecord import TFRecordFormat, TFRecordWriter

RECORDS = [b"replicax", b"", bytes(range(16))]
# What tf.io.TFRecordWriter of TensorFlow 2.21 wrote for RECORDS.
FROM_TENSORFLOW = {
    None: "0800000000000000ff86240f7265706c69636178d058f8dd000000000000000029039807d8ea82a2"
    "100000000000000095fbfe18000102030405060708090a0b0c0d0e0f6a9e5ab4",
    "GZIP": "1f8b0800000000000003e3608080ff6d2afc45a9053999c9891517227edc850a336832cf60bff1aa"
    "699100943ff5f73f0906462666165636760e4e2e6e1e5e3efeac79515b005317138748000000",
    "ZLIB": "789ce3608080ff6d2afc45a9053999c9891517227edc850a336832cf60bff1aa699100943ff5f73f"
    "0906462666165636760e4e2e6e1e5e3efeac79515b008ddd110b",
}
OFFSETS = [24, 40, 72]  # a record takes 16 bytes more than it holds


def elements(path, compression=None, start=None):
    return [record for record, _ in TFRecordFormat(compression).records(str(path), start)]


def masked(data):
    checksum = google_crc32c.value(data)
    return ((checksum >> 15 | checksum << 17) + 0xA282EAD8) % 2**32


@pytest.fixture
def path(tmp_path):
    return tmp_path / "file.tfrecord"


@pytest.fixture
def intact(path):
    path.write_bytes(bytes.fromhex(FROM_TENSORFLOW[None]))
    return path


@pytest.mark.parametrize("compression", FROM_TENSORFLOW)
def test_what_tensorflow_wrote_is_read(path, compression):
    path.write_bytes(bytes.fromhex(FROM_TENSORFLOW[compression]))
    assert elements(path, compression) == RECORDS


def test_the_bytes_written_are_tensorflows(path):
    with TFRecordWriter(str(path)) as writer:
        for record in RECORDS:
            writer.write(record)
    assert path.read_bytes().hex() == FROM_TENSORFLOW[None]


@pytest.mark.parametrize("compression", FROM_TENSORFLOW)
def test_reading_goes_on_at_every_position(path, compression):
    path.write_bytes(bytes.fromhex(FROM_TENSORFLOW[compression]))
    positions = [position for _, position in TFRecordFormat(compression).records(str(path), None)]
    assert positions == OFFSETS
    for number, position in enumerate(positions, 1):
        assert elements(path, compression, position) == RECORDS[number:]


def test_a_record_may_be_larger_than_a_piece(path, monkeypatch):
    monkeypatch.setattr(_formats.tfrecord, "_PIECE", 7)
    with TFRecordWriter(path) as writer:
        writer.write(bytes(range(200)))
    assert elements(path) == [bytes(range(200))]


@pytest.mark.parametrize("kept", range(1, 72))
def test_a_file_that_is_cut_off_is_an_error(intact, kept):
    intact.write_bytes(intact.read_bytes()[:kept])
    if kept in OFFSETS:
        assert elements(intact) == RECORDS[: OFFSETS.index(kept) + 1]
        return
    begins = max(offset for offset in [0, *OFFSETS] if offset < kept)
    with pytest.raises(rx.errors.CorruptRecord, match="cut off") as error:
        elements(intact)
    assert f"{str(intact)!r} is cut off in the record at byte {begins}" in str(error.value)


@pytest.mark.parametrize("damaged", range(72))
def test_every_changed_byte_is_found(intact, damaged):
    contents = bytearray(intact.read_bytes())
    contents[damaged] ^= 0x40
    intact.write_bytes(contents)
    begins = max(offset for offset in [0, *OFFSETS] if offset <= damaged)
    part = "length" if damaged < begins + 12 else "contents"
    with pytest.raises(rx.errors.CorruptRecord, match="checksum") as error:
        elements(intact)
    assert f"checksum of the {part} of the record at byte {begins} " in str(error.value)


@pytest.mark.parametrize("compression", FROM_TENSORFLOW)
def test_an_absurd_length_takes_no_memory(path, compression):
    length = struct.pack("<Q", 2**62)
    with TFRecordWriter(path, compression) as writer:
        writer._put(length + struct.pack("<I", masked(length)) + b"a few bytes")
    tracemalloc.start()
    try:
        with pytest.raises(rx.errors.CorruptRecord, match="cut off.*byte 0"):
            elements(path, compression)
        assert tracemalloc.get_traced_memory()[1] < 40e6
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("compression", FROM_TENSORFLOW)
def test_flushed_records_can_be_read_before_the_end(path, compression):
    with TFRecordWriter(path, compression) as writer:
        writer.write(b"first")
        writer.flush()
        records = TFRecordFormat(compression).records(str(path), None)
        assert next(records)[0] == b"first"
        records.close()


def test_a_writer_can_be_closed_twice_but_not_used_again(path):
    writer = TFRecordWriter(path)
    writer.close()
    writer.close()
    with pytest.raises(rx.errors.UsageError, match="`close`"):
        writer.write(b"late")
    with pytest.raises(rx.errors.UsageError, match="`close`"):
        writer.flush()


@pytest.mark.parametrize("record", [bytearray(b"x"), memoryview(b"x")])
def test_other_kinds_of_bytes_are_records(path, record):
    with TFRecordWriter(path) as writer:
        writer.write(record)
    assert elements(path) == [b"x"]


def test_only_bytes_are_records(path):
    with (
        TFRecordWriter(path) as writer,
        pytest.raises(rx.errors.UsageError, match="str.*make_example"),
    ):
        writer.write("text")  # type: ignore[arg-type]


def test_a_file_that_cannot_be_made_is_named(tmp_path):
    with pytest.raises(rx.errors.UsageError, match="no folder") as error:
        TFRecordWriter(tmp_path / "no folder" / "file")
    assert "no folder" in str(error.value)


def test_unknown_compressions_are_refused(path):
    with pytest.raises(rx.errors.UsageError, match="`compression`.*'gzip'"):
        TFRecordWriter(path, "gzip")
    assert not path.exists()


def test_a_missing_package_is_named(intact, monkeypatch):
    monkeypatch.setitem(sys.modules, "google_crc32c", None)
    with pytest.raises(rx.errors.UsageError, match=r"replicax\[data\]") as error:
        elements(intact)
    assert "pip install 'replicax[data]'" in str(error.value)
