"""Who is not let in, what is said of them, and that nobody else notices."""

import logging
import os
import socket
import struct
import time
from pathlib import Path

import pytest

from replicax._core.errors import UsageError
from replicax._net import Refused, RequestClient, RequestServer, Secret, introduce

from helpers import wait_until

MAGIC = b"RXnet002"


def open_tcp(addresses):
    host, _, port = addresses[-1].removeprefix("tcp://").rpartition(":")
    sock = socket.create_connection((host, int(port)), timeout=60)
    sock.settimeout(60)
    return sock


def receive(sock, size):
    data = b""
    while len(data) < size:
        data += (more := sock.recv(size - len(data)))
        assert more, "hung up"
    return data


def is_hung_up_on(sock):
    """Wait until the other side has hung up, and give what it said before."""
    said = b""
    try:
        while more := sock.recv(1000):
            said += more
    except ConnectionResetError:  # it had not read all
        pass
    return said


def enter(addresses, secret):
    """What a client does to be let in; gives the socket and the session."""
    sock = open_tcp(addresses)
    session, _ = introduce(
        sock,
        Secret(secret),
        place="somebody",
        wanted="",
        hello={},
        peer="",
        deadline=time.monotonic() + 60,
    )
    sock.settimeout(60)
    return sock, session


def sealed(session, data):
    prefix, rest = data[:32], data[32:]
    return prefix + session.outgoing.tag(prefix) + rest + session.outgoing.tag(rest)


def frame(kind, text, *, head=None, buffers=0, segment=0, body=0, more=b""):
    text = text if isinstance(text, bytes) else text.encode()
    length = len(text) if head is None else head
    return struct.pack("<4sBBBBIII4xQ", b"RXw3", kind, 0, 0, 0, length, buffers, segment, body) + (
        more + text
    )


@pytest.fixture
def handled():
    return []


@pytest.fixture
def addresses(serve, handled):
    def handle(session, message):
        handled.append(message.op)
        return {}, []

    return serve(handle, patience=60.0)


@pytest.fixture
def patience(serve, monkeypatch):
    """Set how many seconds those have to say who they are who connect from now on."""
    return lambda seconds: monkeypatch.setattr(serve.listener._listener, "_patience", seconds)


@pytest.fixture
def warnings(caplog):
    caplog.set_level(logging.WARNING, "replicax")

    def said():
        return [record.getMessage() for record in caplog.records if record.module == "listener"]

    def texts(count):
        wait_until(lambda: len(said()) >= count)
        return said()

    return texts


def test_who_knows_the_secret_is_let_in_and_answered(addresses, secret, handled):
    sock, session = enter(addresses, secret)
    with sock:
        sock.sendall(sealed(session, frame(0, '["go",{}]')))
        prefix, tag = receive(sock, 32), receive(sock, 32)
        session.incoming.check(tag, prefix)
        assert prefix[:5] == b"RXw3\x01"
    assert handled == ["go"]


GARBAGE = {
    "random bytes": bytes(range(7, 200)),
    "an HTTP request": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "a huge length": b"\xff" * 64,
    "a pickle": b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f.",
    "another version": b"RXwire99" + bytes(32),
}


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
def test_garbage_is_hung_up_on_without_a_word(addresses, connect, handled, warnings, garbage):
    link = connect(addresses)
    with open_tcp(addresses) as sock:
        sock.sendall(garbage)
        assert is_hung_up_on(sock) == b""
    (text,) = warnings(1)
    assert "a connection from 127.0.0.1: it does not speak the protocol. Only processes" in text
    assert handled == []
    link.call("go on")


@pytest.mark.parametrize("secret_there", [b"x" * 32, bytes(16)])
def test_who_has_another_secret_is_refused_and_told(
    addresses, connect, handled, warnings, secret_there
):
    link = connect(addresses)
    for way in ("tcp", "unix"):
        with pytest.raises(Refused, match="another secret"):
            connect(addresses, way, secret=secret_there)
    assert all("it does not know the secret" in text for text in warnings(2))
    assert handled == []
    link.call("go on")


def test_who_has_no_secret_can_do_nothing(addresses, handled, warnings):
    with open_tcp(addresses) as sock:
        sock.sendall(MAGIC + b"s" + bytes(32))
        receive(sock, 33)
        sock.sendall(bytes(34) + frame(0, '["go",{}]'))
        assert is_hung_up_on(sock) in (b"n" + bytes(34), b"")
    assert "it does not know the secret" in warnings(1)[0]
    assert handled == []


def test_who_is_silent_is_hung_up_on(addresses, patience, connect, handled, warnings):
    link = connect(addresses)
    patience(0.3)
    began = time.monotonic()
    with open_tcp(addresses) as sock:
        assert is_hung_up_on(sock) == b""
    assert time.monotonic() - began > 0.2
    assert "it did not say who it is within 0.3 s" in warnings(1)[0]
    link.call("go on")  # which has been silent, too, but is known


def test_who_speaks_slowly_is_hung_up_on_as_early(addresses, patience, warnings):
    patience(0.3)
    with open_tcp(addresses) as sock, pytest.raises((ConnectionResetError, BrokenPipeError)):
        for byte in MAGIC + b"s" + bytes(32):
            sock.sendall(bytes([byte]))
            time.sleep(0.1)  # never silent for as long as it may be, but too slow in all
        receive(sock, 32)  # not reached
    assert "it did not say who it is within 0.3 s" in warnings(1)[0]


def test_a_peer_is_named_once_in_the_log(addresses, warnings):
    for _ in range(5):
        with open_tcp(addresses) as sock:
            sock.sendall(b"GET / HTTP/1.1")
            is_hung_up_on(sock)
    assert len(warnings(1)) == 1


def test_who_looks_in_and_leaves_is_not_worth_a_line(addresses, connect, warnings):
    open_tcp(addresses).close()
    connect(addresses).call("x")
    assert warnings(0) == []


BROKEN_FRAMES = {
    "no message": (b"\xff" * 32, "it sent bytes that are not a message"),
    "an unknown kind": (frame(9, "[]"), "it sent bytes that are not a message"),
    "a huge head": (frame(0, "", head=0xFFFFFFFF), "it announced a head of 4294967295 bytes and"),
    "many buffers": (frame(0, "[]", buffers=70_000), "and 70000 buffers of 0 bytes; the limits"),
    "a huge body": (frame(0, "[]", body=1 << 62), "0 buffers of 4611686018427387904 bytes"),
    "sizes that do not fit": (
        frame(0, '["a",{}]', buffers=2, body=70, more=struct.pack("<2Q", 1 << 63, 6)) + bytes(70),
        "it announced 70 bytes of buffers, and then 9223372036854775",
    ),
    "no JSON": (frame(0, "{{{{"), "it sent a head that is not a JSON list of two parts"),
    "no UTF-8": (frame(0, b'["\xff",{}]'), "it sent a head that is not a JSON list of two parts"),
    "nothing": (frame(0, ""), "it sent a head that is not a JSON list of two parts"),
    "deep JSON": (frame(0, "[" * 100_000), "it sent a head that is not a JSON list of two parts"),
    "other JSON": (frame(0, "[1,2]"), "it sent a head that is not a text and an object"),
    "a reply": (frame(1, '["",{}]'), "it sent something that is not a request"),
    "shared memory": (
        frame(0, '["",{}]', segment=1, body=0),
        "it refers to memory, and nothing is shared",
    ),
}


@pytest.mark.parametrize("broken", BROKEN_FRAMES)
def test_a_known_peer_that_breaks_the_protocol_is_hung_up_on(
    addresses, secret, connect, handled, warnings, broken
):
    data, reason = BROKEN_FRAMES[broken]
    link = connect(addresses)
    sock, session = enter(addresses, secret)
    with sock:
        sock.sendall(sealed(session, data))
        assert is_hung_up_on(sock) == b""
    assert reason in warnings(1)[0]
    assert handled == []
    link.call("go on")


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_what_is_announced_takes_no_memory_before_it_arrives(addresses, secret, connect, handled):
    size = 4 << 30
    before = resident()
    sock, session = enter(addresses, secret)
    with sock:
        announced = frame(0, '["x",{}]', buffers=1, body=size, more=struct.pack("<Q", size))
        sock.sendall(sealed(session, announced)[:-32])
        sock.sendall(bytes(1000))
        connect(addresses).call("go on")
        assert resident() - before < 200 << 20
    assert handled == ["go on"]


def flipped(data, place):
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


ASK = frame(0, '["go",{}]', buffers=1, body=8, more=struct.pack("<Q", 8)) + b"8 bytes."
FORGERIES = {
    "a flipped bit in the first bytes": lambda session: flipped(sealed(session, ASK), 20),
    "a flipped bit in the head": lambda session: flipped(sealed(session, ASK), 80),
    "a flipped bit in a buffer": lambda session: flipped(sealed(session, ASK), -33),
    "a flipped bit in the seal": lambda session: flipped(sealed(session, ASK), -1),
    "the same message twice": lambda session: sealed(session, ASK) * 2,
    "another order": lambda session: sealed(session, ASK) and sealed(session, ASK),
    "no seal": lambda session: ASK + bytes(64),
}


@pytest.mark.parametrize("forge", FORGERIES.values(), ids=FORGERIES)
def test_a_message_that_was_changed_on_its_way_is_not_read(
    addresses, secret, connect, handled, warnings, forge
):
    link = connect(addresses)
    sock, session = enter(addresses, secret)
    with sock:
        sock.sendall(forge(session))
        is_hung_up_on(sock)
    assert "changed on its way" in warnings(1)[0]
    assert handled in ([], ["go"])  # the first of two
    link.call("go on")


def test_a_message_that_is_cut_off_is_not_read(addresses, secret, connect, handled):
    sock, session = enter(addresses, secret)
    with sock:
        sock.sendall(sealed(session, ASK)[:-1])
    connect(addresses).call("go on")
    assert handled == ["go on"]


def test_what_a_listener_says_is_no_question_to_it(addresses, secret, handled, warnings):
    sock, session = enter(addresses, secret)
    with sock:
        sock.sendall(sealed(session, ASK))
        reply = receive(sock, 32 + 32 + 7 + 32)
        sock.sendall(reply)
        is_hung_up_on(sock)
    assert "changed on its way" in warnings(1)[0]
    assert handled == ["go"]


@pytest.mark.parametrize("short", [b"", b"changeme"])
def test_a_secret_that_can_be_guessed_is_refused(short):
    message = "at least 16 bytes"
    with pytest.raises(UsageError, match=message):
        RequestServer(short, lambda session, message: ({}, []))
    with pytest.raises(UsageError, match=message):
        RequestClient.connect(["tcp://127.0.0.1:1"], short)
