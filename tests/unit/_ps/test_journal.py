"""Messages that are written down."""

import numpy as np
import pytest

from replicax._net import encode
from replicax._ps.server.snapshot_files import Journal, records


@pytest.fixture
def path(tmp_path):
    journal = Journal(tmp_path / "journal")
    journal.append("create", {"cell": 1}, [np.arange(3, dtype=np.uint8), b""])
    journal.append("write", {"items": []})
    journal.close()
    journal.append("write", {"items": ["of a server that has ended"]})
    return tmp_path / "journal"


def test_what_was_written_is_read(path):
    first, second = records(path)
    assert (first.op, first.head) == ("create", {"cell": 1})
    assert [bytes(buffer) for buffer in first.buffers] == [b"\0\1\2", b""]
    assert (second.op, second.head, second.buffers) == ("write", {"items": []}, [])


@pytest.mark.parametrize("left", [1, 20, -1])
def test_a_message_that_was_cut_off_is_none(path, left):
    whole = path.read_bytes()
    first = len(whole) - 12 - encode("write", {"items": []}).size
    path.write_bytes(whole[: first + left] if left > 0 else whole[:left])
    assert [record.op for record in records(path)] == ["create"]


def test_a_message_that_was_damaged_ends_the_journal(path):
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(bytes(data))
    assert list(records(path)) == []


def test_a_journal_is_made_once(path):
    with pytest.raises(FileExistsError):
        Journal(path)
