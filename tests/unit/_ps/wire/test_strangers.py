"""Who is not let in, what is said of them, and that nobody else notices."""

from __future__ import annotations

import hmac
import logging
import os
import socket
import struct
import threading
import time
from pathlib import Path

import pytest

from replicax._core.errors import UsageError
from replicax._ps.wire import Link, Listener, Refused

from helpers import wait_until

MAGIC = b"RXwire01"


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


def proof(secret, role, client, server):
    return hmac.digest(secret, role + client + server, "sha256")


def enter(addresses, secret):
    """What a client does to be let in, by hand; gives the socket, and all that was sent."""
    sock = open_tcp(addresses)
    client = os.urandom(32)
    sock.sendall(MAGIC + client)
    server = receive(sock, 32)
    mine = proof(secret, b"client", client, server)
    sock.sendall(mine)
    return sock, client, server, mine


def frame(kind, text, *, head=None, buffers=0, segment=0, body=0, more=b""):
    text = text if isinstance(text, bytes) else text.encode()
    length = len(text) if head is None else head
    return struct.pack("<4sBBBBIII4xQ", b"RXw1", kind, 0, 0, 0, length, buffers, segment, body) + (
        more + text
    )


HELLO = frame(3, '["",{}]')


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
    return lambda seconds: monkeypatch.setattr(serve.listener, "_patience", seconds)


@pytest.fixture
def warnings(caplog):
    caplog.set_level(logging.WARNING, "replicax")

    def said():
        return [record.getMessage() for record in caplog.records if record.module == "_listener"]

    def texts(count):
        wait_until(lambda: len(said()) >= count)
        return said()

    return texts


def test_the_handshake_is_as_drawn(addresses, secret, handled):
    sock, client, server, _ = enter(addresses, secret)
    with sock:
        assert receive(sock, 33) == b"y" + proof(secret, b"server", client, server)
        sock.sendall(HELLO + frame(0, '["go",{}]'))
        assert receive(sock, 32)[:5] == b"RXw1\x01"
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
        with pytest.raises(Refused, match=r"the same secret\. Received: another secret than that"):
            connect(addresses, way, secret=secret_there)
    assert all("it does not know the secret" in text for text in warnings(2))
    assert handled == []
    link.call("go on")


def test_who_has_no_secret_can_do_nothing(addresses, handled, warnings):
    with open_tcp(addresses) as sock:
        sock.sendall(MAGIC + bytes(32))
        receive(sock, 32)
        sock.sendall(HELLO + frame(0, '["go",{}]'))
        assert is_hung_up_on(sock) in (b"n" + bytes(32), b"")
    assert "it does not know the secret" in warnings(1)[0]
    assert handled == []


def test_the_proof_of_another_connection_is_worth_nothing(addresses, secret, handled):
    sock, client, _, mine = enter(addresses, secret)
    with sock:
        assert receive(sock, 33)[:1] == b"y"
    with open_tcp(addresses) as sock:
        sock.sendall(MAGIC + client)
        receive(sock, 32)  # another nonce, so
        sock.sendall(mine + HELLO + frame(0, '["go",{}]'))
        assert is_hung_up_on(sock) in (b"n" + bytes(32), b"")
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
        for byte in MAGIC + bytes(32):
            sock.sendall(bytes([byte]))
            time.sleep(0.1)  # never silent for as long as it may be, but too slow in all
        receive(sock, 32)  # not reached
    assert "it did not say who it is within 0.3 s" in warnings(1)[0]


def test_who_is_known_but_says_nothing_of_itself_is_hung_up_on(
    addresses, patience, secret, warnings
):
    patience(2.0)
    sock, *_ = enter(addresses, secret)
    with sock:
        assert is_hung_up_on(sock)[:1] == b"y"
    assert "did not say who it is" in warnings(1)[0]


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
    "no message": (b"\xff" * 32, "it sent bytes that are no message"),
    "an unknown kind": (frame(9, "[]"), "it sent bytes that are no message"),
    "a huge head": (frame(0, "", head=0xFFFFFFFF), "it announced a head of 4294967295 bytes and"),
    "many buffers": (frame(0, "[]", buffers=70_000), "and 70000 buffers of 0 bytes, of at most"),
    "a huge body": (frame(0, "[]", body=1 << 62), "0 buffers of 4611686018427387904 bytes"),
    "sizes that do not fit": (
        frame(0, '["a",{}]', buffers=2, body=70, more=struct.pack("<2Q", 1 << 63, 6)),
        "it announced 70 bytes of buffers, and then 9223372036854775",
    ),
    "no JSON": (frame(0, "{{{{"), "it sent a head that is not JSON"),
    "no UTF-8": (frame(0, b'["\xff",{}]'), "it sent a head that is not JSON"),
    "nothing": (frame(0, ""), "it sent a head that is not JSON"),
    "deep JSON": (frame(0, "[" * 100_000), "it sent a head that is not JSON, or not of two parts"),
    "other JSON": (frame(0, "[1,2]"), "it sent a head that is no text and object"),
    "a reply": (frame(1, '["",{}]'), "it sent what is no request"),
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
    sock, *_ = enter(addresses, secret)
    with sock:
        receive(sock, 33)
        sock.sendall(HELLO + data)
        assert is_hung_up_on(sock) == b""
    assert reason in warnings(1)[0]
    assert handled == []
    link.call("go on")


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_what_is_announced_takes_no_memory_before_it_arrives(addresses, secret, connect, handled):
    size = 4 << 30
    before = resident()
    sock, *_ = enter(addresses, secret)
    with sock:
        receive(sock, 33)
        sock.sendall(
            HELLO + frame(0, '["x",{}]', buffers=1, body=size, more=struct.pack("<Q", size))
        )
        sock.sendall(bytes(1000))
        connect(addresses).call("go on")
        assert resident() - before < 200 << 20
    assert handled == ["go on"]


def test_who_asks_before_it_says_who_it_is_is_hung_up_on(addresses, secret, handled, warnings):
    sock, *_ = enter(addresses, secret)
    with sock:
        receive(sock, 33)
        sock.sendall(frame(0, '["go",{}]'))
        assert is_hung_up_on(sock) == b""
    assert "it asked before it said who it is" in warnings(1)[0]
    assert handled == []


def answer(sock, secret, reply):
    """Play a server, and give all that a client sends to it."""
    heard = receive(sock, 40)
    nonce = os.urandom(32)
    sock.sendall(nonce)
    heard += receive(sock, 32)
    sock.sendall(reply(heard[8:40], nonce, heard[40:]))
    return heard, is_hung_up_on(sock)


IMPOSTORS = {
    "no proof": lambda client, server, theirs: b"y" + bytes(32),
    "what the client said": lambda client, server, theirs: b"y" + theirs,
    "another secret": lambda client, server, theirs: (
        b"Y" + proof(b"x" * 32, b"server", client, server)
    ),
}


@pytest.mark.parametrize("reply", IMPOSTORS.values(), ids=IMPOSTORS)
def test_an_impostor_gets_nothing_from_a_link(secret, reply):
    heard = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10)

        def play():
            sock, _ = server.accept()
            with sock:
                heard.append(answer(sock, secret, reply))

        thread = threading.Thread(target=play)
        thread.start()
        with pytest.raises(Refused, match=r"must prove that it knows the secret\. Received: no "):
            Link.connect(
                [f"tcp://127.0.0.1:{server.getsockname()[1]}"], secret, hello={"key": "private"}
            )
        thread.join()
    ((before, after),) = heard
    assert len(before) == 40 + 32
    assert after == b""


@pytest.mark.parametrize("short", [b"", b"changeme"])
def test_a_secret_that_can_be_guessed_is_refused(short):
    message = r"A secret must have at least 16 bytes\. Received: "
    with pytest.raises(UsageError, match=message):
        Listener(short, lambda session, message: ({}, []))
    with pytest.raises(UsageError, match=message):
        Link.connect(["tcp://127.0.0.1:1"], short)


def test_many_silent_strangers_keep_nobody_out(serve, connect):
    addresses = serve(patience=2.0)
    strangers = [open_tcp(addresses) for _ in range(100)]
    connect(addresses).call("x")
    for sock in strangers:
        sock.close()
