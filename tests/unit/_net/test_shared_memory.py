"""Memory shared with another process of the host: what is reused, what is kept, what is freed."""

import fcntl
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from replicax._net import REQUEST, Connection, Garbled
from replicax._net.frames import NOTHING, encoded, lay_out

from helpers import open_files, since_now

MB = 1 << 20
COUNT = 16_384  # numbers of eight bytes


def in_address_space():
    lines = Path("/proc/self/maps").read_text().splitlines()
    return [line for line in lines if "memfd:replicax" in line]


@pytest.fixture
def mappings():
    """The pieces of shared memory that this test has in its address space."""
    return since_now(in_address_space)


@pytest.fixture
def files():
    """What this test has open of what a connection opens."""
    return since_now(lambda: open_files("socket:", "/memfd:"))


@pytest.fixture
def ends(mappings, files):
    pair = [Connection(sock, shared=True) for sock in socket.socketpair()]
    yield pair
    for connection in pair:
        connection.close()
    assert (mappings(), files()) == ([], [])


def send(source, target, *buffers):
    message = source.prepare(REQUEST, "x", {}, buffers)
    with ThreadPoolExecutor(1) as other:  # a socket takes so much only if somebody reads
        other.submit(source.send, message)
        return target.receive().buffers


def value(buffer):
    (single,) = set(np.frombuffer(buffer))
    return single


def test_large_buffers_do_not_go_through_the_socket(ends):
    here, there = ends
    message = here.prepare(REQUEST, "x", {}, [np.zeros(MB)])
    assert message.size < 100
    here.send(message)
    assert value(there.receive().buffers[0]) == 0
    assert here.prepare(REQUEST, "x", {}, [np.zeros(100)]).size > 800


def test_memory_is_written_again_when_the_other_end_has_said_that_it_is_unused(ends, mappings):
    here, there = ends
    for n in range(20):
        (buffer,) = send(here, there, np.full(COUNT, float(n)))
        assert value(buffer) == n
        del buffer
        send(there, here)
    assert len(mappings()) == 2  # of one segment, both ends are in this process


def test_memory_that_is_in_use_is_not_written_again(ends, mappings):
    here, there = ends
    kept = []
    for n in range(10):
        (buffer,) = send(here, there, np.full(COUNT, float(n)))
        # What is made of a buffer counts, the buffer itself does not.
        kept.append(np.frombuffer(buffer).reshape(2, -1)[1:])
        send(there, here)
    assert [value(array) for array in kept] == list(range(10))
    assert len(mappings()) == 2 * 4  # the rest came through the socket


def test_what_is_kept_for_long_is_left_to_who_keeps_it(ends, mappings):
    here, there = ends
    kept = [send(here, there, np.full(COUNT, float(n)))[0] for n in range(4)]
    for n in range(100):
        (buffer,) = send(here, there, np.full(COUNT, float(n)))
        assert value(buffer) == n
        del buffer
        send(there, here)
    send(here, there, np.zeros(COUNT))
    assert len(mappings()) == 4 + 2  # those four there; and one at both ends, again and again
    assert [value(buffer) for buffer in kept] == [0, 1, 2, 3]


def test_growing_messages_replace_the_memory_of_small_ones(ends, mappings):
    here, there = ends
    for n in range(1, 12):
        (buffer,) = send(here, there, np.full(n * COUNT, float(n)))
        assert value(buffer) == n
        del buffer
        send(there, here)
    assert len(mappings()) <= 2 * 4


def test_messages_too_large_to_keep_memory_for_go_through_the_socket(ends, monkeypatch):
    monkeypatch.setattr("replicax._net.shared_memory._MOST", MB)
    assert ends[0].prepare(REQUEST, "x", {}, [np.zeros(MB)]).size > 8 * MB


def test_where_no_memory_can_be_made_the_socket_is_used(ends, monkeypatch):
    def full(file, offset, size):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    assert ends[0].prepare(REQUEST, "x", {}, [np.zeros(MB)]).size > 8 * MB


def say(sock, segment, *files, new=1, count=8):
    """Send a message that says that its numbers are in a segment, and the segment."""
    body = lay_out([np.zeros(count)], 1 << 30)
    notes = NOTHING._replace(segment=segment, new=new)
    message = encoded(REQUEST, b'["x",{}]', body, notes)
    socket.send_fds(sock, [message.first], files)


@pytest.fixture
def attack(files):
    """A connection that shares memory, and the bare socket of its other end."""
    mine, its = socket.socketpair()
    connection = Connection(its, shared=True)
    yield mine, connection
    mine.close()
    connection.close()
    assert files() == []


def memory(size, seals=fcntl.F_SEAL_SHRINK):
    file = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.truncate(file, size)
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)
    return file


def test_memory_that_could_be_taken_away_is_refused(attack):
    mine, connection = attack
    file = memory(4096, seals=0)
    say(mine, 1, file)
    os.close(file)
    with pytest.raises(Garbled, match="memory that it could take away"):
        connection.receive()


def test_a_file_that_is_no_memory_is_refused(attack, tmp_path):
    mine, connection = attack
    (tmp_path / "file").write_bytes(bytes(4096))
    with open(tmp_path / "file", "rb") as file:
        say(mine, 1, file.fileno())
    with pytest.raises(Garbled, match="shares memory that cannot be used: "):
        connection.receive()


def test_memory_that_is_announced_only_is_refused(attack):
    mine, connection = attack
    say(mine, 1)
    with pytest.raises(Garbled, match="it announced memory, and sent none"):
        connection.receive()


def test_memory_that_is_not_announced_is_refused(attack):
    mine, connection = attack
    file = memory(4096)
    say(mine, 0, file, new=0, count=0)
    say(mine, 0, file, new=0, count=0)
    os.close(file)
    with pytest.raises(Garbled, match="memory that it has not announced"):
        connection.receive(), connection.receive()


def test_a_message_beyond_the_memory_is_refused(attack):
    mine, connection = attack
    file = memory(4096)
    say(mine, 1, file, count=4096)
    os.close(file)
    with pytest.raises(Garbled, match="refers to memory that it does not share"):
        connection.receive()


def test_memory_that_is_in_use_is_refused(attack):
    mine, connection = attack
    file = memory(4096)
    say(mine, 1, file)
    os.close(file)
    message = connection.receive()
    say(mine, 1, new=0)
    with pytest.raises(Garbled, match="refers to memory that it does not share"):
        connection.receive()
    assert value(message.buffers[0]) == 0


def test_more_memory_than_agreed_is_refused(attack):
    mine, connection = attack
    file = memory(4096)
    with pytest.raises(Garbled, match="it shares more memory than agreed"):
        for segment in range(1, 20):
            say(mine, segment, file)
            connection.receive()
    os.close(file)
