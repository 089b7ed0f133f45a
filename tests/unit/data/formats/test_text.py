"""Lines of text files, and opening files: plain, compressed, damaged."""

import gzip
import pickle
import zlib

import pytest

import replicax as rx
from replicax.data._formats.format import TextFormat, open_bytes

LINES = b"one\r\n\ntw\xc3\xb6 words\nno end"
PACK = {None: bytes, "": bytes, "GZIP": gzip.compress, "ZLIB": zlib.compress}


def elements(form, path, start=None):
    return [element for element, _ in form.records(str(path), start)]


@pytest.fixture
def write(tmp_path):
    def write(contents, compression=None):
        path = tmp_path / "file.txt"
        path.write_bytes(PACK[compression](contents))
        return str(path)

    return write


@pytest.mark.parametrize("compression", PACK)
def test_a_line_is_an_element_without_its_end(write, compression):
    path = write(LINES, compression)
    assert elements(TextFormat(compression), path) == ["one", "", "twö words", "no end"]


@pytest.mark.parametrize("compression", PACK)
def test_reading_goes_on_at_every_position(write, compression):
    path, form = write(LINES, compression), TextFormat(compression)
    whole = list(form.records(path, None))
    for number, (_, position) in enumerate(whole, 1):
        assert list(form.records(path, pickle.loads(pickle.dumps(position)))) == whole[number:]


def test_a_position_may_come_back_as_a_list(write):
    # As of a state that was saved as JSON.
    assert elements(TextFormat(), write(b"a\nb\n"), [2, 1]) == ["b"]


def test_an_empty_file_has_no_lines(write):
    assert elements(TextFormat(), write(b"")) == []
    assert elements(TextFormat("GZIP"), write(b"")) == []


def test_a_byte_order_mark_is_no_text(write):
    path = write(b"\xef\xbb\xbfone\n\xef\xbb\xbftwo\n")
    whole = list(TextFormat().records(path, None))
    assert [line for line, _ in whole] == ["one", "\ufefftwo"]
    assert elements(TextFormat(), path, whole[0][1]) == ["\ufefftwo"]


def test_other_separators_of_unicode_do_not_end_a_line(write):
    assert elements(TextFormat(), write("a\u2028b\x0bc\rd\n".encode())) == ["a\u2028b\x0bc\rd"]


@pytest.mark.parametrize("start", [None, (3, 1)])
def test_other_encodings_are_refused_with_their_place(write, start):
    path = write(b"ok\nna\xefve\n")
    with pytest.raises(rx.errors.CorruptRecord, match="Line 2.*UTF-8") as error:
        elements(TextFormat(), path, start)
    assert f"{path!r} is not UTF-8: byte 0xef at column 2" in str(error.value)


def test_the_file_is_closed_with_the_iterator(write):
    # An open file would warn when it is collected, and warnings are errors here.
    records = TextFormat().records(write(LINES), None)
    next(records)
    records.close()
    assert list(records) == []


def test_a_missing_file_is_named(tmp_path):
    path = str(tmp_path / "missing")
    with pytest.raises(rx.errors.UsageError, match="missing") as error:
        elements(TextFormat(), path)
    assert repr(path) in str(error.value)
    assert "No such file" in str(error.value)


@pytest.mark.parametrize("compression", ["GZIP", "ZLIB"])
class TestCompressed:
    def test_several_compressed_files_in_a_row_are_one(self, write, compression):
        path = write(b"")
        with open(path, "wb") as file:
            file.write(PACK[compression](b"a\nb") + bytes(9) + PACK[compression](b"c\n") + bytes(9))
        assert elements(TextFormat(compression), path) == ["a", "bc"]

    def test_contents_larger_than_a_buffer_are_whole(self, write, compression):
        contents = b"".join(b"%d\n" % number for number in range(200_000))
        path = write(contents, compression)
        with open_bytes(path, compression) as file:
            assert file.read() == contents
        with open_bytes(path, compression, start=1_000_000) as file:
            assert file.read() == contents[1_000_000:]
        with open_bytes(path, compression, start=10_000_000) as file:
            assert file.read() == b""

    @pytest.mark.parametrize("missing", [1, 8, 20])
    def test_what_is_cut_off_is_an_error(self, write, compression, missing):
        path = write(LINES, compression)
        with open(path, "rb") as file:
            contents = file.read()
        with open(path, "wb") as file:
            file.write(contents[:-missing])
        with pytest.raises(rx.errors.CorruptRecord, match="it is cut off"):
            elements(TextFormat(compression), path)

    def test_what_is_not_compressed_is_an_error(self, write, compression):
        with pytest.raises(rx.errors.CorruptRecord, match="file.txt.*compression") as error:
            elements(TextFormat(compression), write(LINES))
        assert "incorrect header check" in str(error.value)
