"""One connection: messages arrive whole, also when a signal comes in the midst of one."""

import signal
import socket
import threading
from contextlib import closing, suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicax._net import BROKEN, Connection, Forged, Outbox, Seal, Session, decode, encode
from replicax._net.connection import _sealed
from replicax._net.frames import LARGEST_HEAD, MOST_BUFFERS

MESSAGES = st.builds(
    encode,
    st.text(max_size=9),
    st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=9), max_size=3),
    st.lists(st.binary(max_size=200) | st.just(bytes(100_000)), max_size=4),
)


def ends(make=Connection):
    """Two ends of a connection with seals."""
    near, far = socket.socketpair()
    keys = b"there", b"back"
    there, back = ([Seal(key) for key in keys] for _ in range(2))
    return make(near, session=Session(*there)), make(far, session=Session(*reversed(back)))


class Interrupting:
    """A seal in the midst of whose work somebody types Ctrl-C."""

    def __init__(self, seal):
        self._seal = seal

    def tag(self, *pieces):
        tag = self._seal.tag(*pieces)
        signal.raise_signal(signal.SIGINT)
        return tag


def test_a_signal_waits_until_a_message_is_sent(monkeypatch):
    near, far = ends(Outbox)
    with closing(near), closing(far):
        session = near._session
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            interrupting = Session(Interrupting(session.outgoing), session.incoming)
            patched.setattr(near, "_session", interrupting)
            near.send(encode("one", {}, [b"payload"]))
        near.send(encode("two", {}))
        assert far.receive()[:3] == ("one", {}, [b"payload"])
        assert far.receive()[:3] == ("two", {}, [])


def sent(sock, data):
    """Send bytes, as far as somebody reads them, and hang up."""
    with suppress(OSError):
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)


def received(data, **options):
    """The messages that a connection makes of bytes, and the error that ends it."""
    near, far = socket.socketpair()
    found = []
    with near, closing(Connection(far, **options)) as connection:
        threading.Thread(target=sent, args=(near, data)).start()
        try:
            while True:
                found.append(connection.receive())
        except BROKEN as error:
            return found, error


def bytes_of(*messages):
    return b"".join(bytes(piece) for each in messages for piece in each.pieces)


def is_message(found, message):
    sent = decode(message)
    return found[:2] == sent[:2] and list(map(bytes, found[2])) == list(map(bytes, sent[2]))


@settings(max_examples=50, deadline=None)
@given(st.lists(MESSAGES, max_size=5))
def test_messages_arrive_one_after_another(messages):
    found, error = received(bytes_of(*messages))
    assert all(map(is_message, found, messages))
    assert len(found) == len(messages)
    assert isinstance(error, EOFError)


@settings(max_examples=50, deadline=None)
@given(MESSAGES, st.data())
def test_a_cut_message_is_none(message, data):
    whole = bytes_of(message)
    cut = data.draw(st.integers(0, len(whole) - 1))
    found, error = received(whole[:cut])
    assert found == []
    assert isinstance(error, EOFError)


@settings(max_examples=200, deadline=None)
@given(MESSAGES, st.data(), st.booleans())
def test_an_altered_message_is_read_or_refused(message, data, shared):
    whole = bytearray(bytes_of(message))
    for place in data.draw(st.lists(st.integers(0, min(len(whole), 64) - 1), min_size=1)):
        whole[place] = data.draw(st.integers(0, 255))
    # Without a seal, another message may come of it; no other error may.
    received(whole, shared=shared, largest=1 << 20)


@settings(max_examples=100, deadline=None)
@given(MESSAGES, st.data())
def test_a_sealed_message_that_was_altered_is_not_read(message, data):
    near, far = ends()
    with closing(near), closing(far):
        pieces = _sealed(message.pieces, near._session)
        whole = bytearray(b"".join(bytes(piece) for piece in pieces))
        size = len(whole)
        whole[data.draw(st.integers(0, size - 1))] ^= data.draw(st.integers(1, 255))
        threading.Thread(target=sent, args=(near._sock, whole)).start()
        with pytest.raises(Forged):
            far.receive()


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 255), *[st.integers(0, (1 << 32) - 1)] * 3, st.integers(0, (1 << 64) - 1))
def test_a_length_over_the_limits_is_refused(kind, head, buffers, segment, body):
    whole = bytearray(bytes_of(encode("", {})))
    whole[4] = kind
    for place, size, value in ((8, 4, head), (12, 4, buffers), (16, 4, segment), (24, 8, body)):
        whole[place : place + size] = value.to_bytes(size, "little")
    found, _ = received(whole, largest=1 << 20)
    assert found == [] or head <= LARGEST_HEAD and buffers <= MOST_BUFFERS and body <= 1 << 20
