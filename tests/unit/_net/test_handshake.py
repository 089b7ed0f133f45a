"""Who may be at the other end: strangers, impostors, relays, and those that are meant."""

from __future__ import annotations

import contextlib
import hmac
import socket
import threading
import time
from hashlib import sha256

import pytest

from replicax._net import (
    Denied,
    Forged,
    Listener,
    Refused,
    Seal,
    Secret,
    handshake,
    in_cluster,
    introduce,
)

from helpers import begun_threads, wait_until

SECRET = Secret(bytes(range(32)))


@pytest.fixture
def serve():
    """Make a door at 127.0.0.1; gives its port. Connections say `hello` and are kept."""
    with contextlib.ExitStack() as stack:

        def start(place="server 2", secret=SECRET, **options):
            def hold(connection):
                start.met.append(connection)
                with contextlib.suppress(OSError):
                    connection.sock.recv(1)

            door = Listener(secret, place, hold, **options)
            stack.callback(door.close, 5.0)
            port = door.listen("127.0.0.1", 0).getsockname()[1]
            door.open()
            return port

        start.met = []
        yield start


def connect(port, *, wanted="server 2", secret=SECRET, hello=None, seconds=20.0):
    """Be a client; gives its session and what the server said."""
    with socket.create_connection(("127.0.0.1", port), 20) as sock:
        return introduce(
            sock,
            secret,
            place="worker 1",
            wanted=wanted,
            hello=hello or {},
            peer=f"port {port}",
            deadline=time.monotonic() + seconds,
        )


def relay(port, change=lambda data: data):
    """Listen at a port, and pass on what comes there to another port, and back; gives the port."""
    server = socket.create_server(("127.0.0.1", 0))

    def passing(source, target):
        with contextlib.suppress(OSError), source, target:
            while data := source.recv(1 << 16):
                target.sendall(change(data))

    def run():
        with server:
            near, _ = server.accept()
        far = socket.create_connection(("127.0.0.1", port))
        back = threading.Thread(target=passing, args=(far.dup(), near.dup()), daemon=True)
        back.start()
        passing(near, far)

    threading.Thread(target=run, daemon=True).start()
    return server.getsockname()[1]


def test_both_ends_know_who_is_there_and_have_the_same_keys(serve):
    port = serve(admit=lambda caller: {"seen": caller.hello["name"]})
    session, said = connect(port, hello={"name": "Ada"})
    assert said == {"seen": "Ada"}
    wait_until(lambda: serve.met)
    (there,) = serve.met
    assert there.caller.place == "worker 1"
    assert there.caller.hello == {"name": "Ada"}
    there.session.incoming.check(session.outgoing.tag(b"x"), b"x")
    session.incoming.check(there.session.outgoing.tag(b"y", b"z"), b"y", b"z")


def test_who_means_another_process_is_refused_by_the_one_that_is_there(serve):
    with pytest.raises(Refused, match="server 2 was looked for, and server 1 is here"):
        connect(serve("server 1"))
    assert not serve.met


def test_an_impostor_that_passes_on_to_another_member_gets_no_further(serve):
    behind = relay(serve("server 1"))
    with pytest.raises(Refused, match="server 2 was looked for, and server 1 is here"):
        connect(behind)
    assert not serve.met


def test_an_impostor_cannot_change_whom_a_client_wants(serve):
    behind = relay(serve("server 1"), lambda data: data.replace(b"server 2", b"server 1"))
    with pytest.raises(Refused):
        connect(behind)
    assert not serve.met


OURS, THEIRS = "1f (worker a:1, b:1)", "2e (worker c:1, d:1)"


def test_those_of_one_cluster_meet(serve):
    connect(serve(in_cluster("server 2", OURS)), wanted=in_cluster("server 2", OURS))
    wait_until(lambda: serve.met)


@pytest.mark.parametrize(
    ("wanted", "here"), [(OURS, THEIRS), (OURS, ""), ("", THEIRS), (OURS, OURS[:-1])]
)
def test_the_same_place_of_another_cluster_is_refused_by_both(serve, caplog, wanted, here):
    behind = relay(serve(in_cluster("server 2", here)))
    with pytest.raises(Refused, match="another job") as caught:
        connect(behind, wanted=in_cluster("server 2", wanted))
    wait_until(lambda: caplog.records)
    for told in (str(caught.value), caplog.text):
        assert all(f"of cluster {name or 'without a name'}" in told for name in (wanted, here))
    assert not serve.met


def test_who_wants_a_name_that_takes_many_bytes_hears_why_it_is_refused(serve):
    wanted = in_cluster("\N{GRINNING FACE}" * 80, "\N{GRINNING FACE}" * 240)
    with pytest.raises(Refused, match="another job"):
        connect(serve(in_cluster("server 2", OURS)), wanted=wanted)


def test_an_impostor_cannot_change_which_cluster_a_client_wants(serve):
    port = serve(in_cluster("server 2", OURS))
    behind = relay(port, lambda data: data.replace(THEIRS.encode(), OURS.encode()))
    with pytest.raises(Refused):
        connect(behind, wanted=in_cluster("server 2", THEIRS))
    assert not serve.met


def test_who_passes_on_to_the_member_that_is_meant_has_no_key(serve):
    seen = []
    behind = relay(serve(), lambda data: seen.append(data) or data)
    session, _ = connect(behind)
    wait_until(lambda: serve.met)
    (there,) = serve.met
    there.session.incoming.check(session.outgoing.tag(b"x", b"", b"y"), b"xy")
    for key in (b"", sha256(b"".join(seen)).digest(), bytes(32)):
        with pytest.raises(Forged):
            there.session.incoming.check(Seal(key).tag(b"x"), b"x")


@pytest.mark.parametrize(
    ("client", "server", "names"),
    [
        (Secret(b"another one, as long"), SECRET, "the same secret"),
        (None, SECRET, "no secret here, and one at port"),
        (SECRET, None, "none at port"),
    ],
)
def test_both_have_the_same_secret_or_none(serve, client, server, names):
    port = serve(secret=server)
    with pytest.raises(Refused, match=names):
        connect(port, secret=client)
    assert not serve.met
    connect(port, secret=server)


def test_a_secret_is_not_printed():
    assert "secret value" not in repr(Secret(b"secret value", "that of X"))


def test_a_server_may_say_why_it_does_not_want_somebody(serve):
    def admit(caller):
        raise Denied("worker 1 is there\x1b[2J already")

    with pytest.raises(Refused, match=r"worker 1 is there\[2J already") as caught:
        connect(serve(admit=admit))
    assert "\x1b" not in str(caught.value)


DEEP = "[" * 2000 + "]" * 2000
HELLOS = ["1e400", "Infinity", "-Infinity", "NaN", "-1", "true", '"1"', "null", "{}", DEEP]


@pytest.mark.parametrize("text", HELLOS)
def test_what_a_client_says_of_itself_is_not_trusted(serve, text, monkeypatch):
    seen = []

    def admit(caller):
        seen.append(caller.hello)
        return {}

    port = serve(secret=None, admit=admit)
    encode, said = handshake._encode, f'{{"hello":{text},"wanted":"server 2"}}'.encode()
    monkeypatch.setattr(handshake, "_encode", lambda all: said if "hello" in all else encode(all))
    with contextlib.suppress(Refused, EOFError, OSError):
        connect(port, secret=None, seconds=5)
    monkeypatch.setattr(handshake, "_encode", encode)
    connect(port, secret=None)
    wait_until(lambda: len(serve.met) == 1 + (text == "{}"))


@pytest.mark.parametrize(
    "received",
    [
        lambda tags: [(tags[0], b"a"), (tags[0], b"a")],  # twice
        lambda tags: [(tags[1], b"b")],  # the first was left out, or comes later
        lambda tags: [(tags[0], b"b")],  # changed
        lambda tags: [(tags[0][:-1] + b"\0", b"a")],
        lambda tags: [(b"", b"a")],
    ],
)
def test_a_seal_fits_its_message_and_its_place_only(received):
    sender, receiver = Seal(b"key"), Seal(b"key")
    tags = [sender.tag(b"a"), sender.tag(b"b")]
    with pytest.raises(Forged):
        for tag, data in received(tags):
            receiver.check(tag, data)


@pytest.mark.parametrize("key", [b"key", bytes(range(64))])
def test_a_seal_is_an_hmac_over_a_counter_and_the_bytes(key):
    seal = Seal(key)
    for number, data in enumerate([b"", b"a", bytes(1000)]):
        assert seal.tag(data[:5], data[5:]) == hmac.digest(
            key, bytes([0] * 7 + [number]) + data, "sha256"
        )


def test_what_one_end_has_sent_does_not_fit_when_it_comes_back(serve):
    session, _ = connect(serve())
    with pytest.raises(Forged):
        session.incoming.check(session.outgoing.tag(b"x"), b"x")


def test_what_was_recorded_is_worth_nothing_later(serve):
    recorded = []
    port = serve()
    connect(relay(port, lambda data: recorded.append(data) or data))
    with socket.create_connection(("127.0.0.1", port), 20) as sock:
        sock.sendall(b"".join(recorded[:1]))
        sock.recv(99)
        sock.sendall(recorded[2])
        assert sock.recv(99)[:1] in (b"n", b"")
    wait_until(lambda: len(serve.met) == 1)


CROWDS = {
    "silent": b"",
    "garbage": b"\xff" * 4096,
    "half a handshake": b"RXnet002s" + bytes(32),
    "a huge length": b"RXnet002s" + bytes(32) + b"\xff\xff" + bytes(32),
}


@pytest.mark.parametrize("said", CROWDS.values(), ids=CROWDS)
def test_a_crowd_of_strangers_keeps_nobody_out(serve, said):
    port = serve(patience=60.0)
    crowd = [socket.create_connection(("127.0.0.1", port), 20) for _ in range(200)]
    for sock in crowd:
        with contextlib.suppress(OSError):  # hung up on already
            sock.sendall(said)
    began = time.monotonic()
    connect(port)
    assert time.monotonic() - began < 2.0
    assert len(begun_threads()) < 100  # of 200 strangers 64 are listened to
    for sock in crowd:
        sock.close()


@pytest.mark.parametrize("secret", [SECRET, None])
def test_another_program_is_not_taken_for_a_member(secret):
    with socket.create_server(("127.0.0.1", 0)) as server, contextlib.ExitStack() as stack:

        def answer():
            sock = stack.enter_context(server.accept()[0])
            sock.sendall(b"\0" * 64)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(Refused, match="another program") as caught:
            connect(server.getsockname()[1], secret=secret)
        thread.join()
    assert "secret" not in str(caught.value)


def test_a_door_stays_open_when_no_thread_can_be_started(serve, monkeypatch, caplog):
    port, start, failed = serve(), threading.Thread.start, []

    def fail(thread):
        if thread.name == "replicax-session" and len(failed) < 3:
            failed.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", fail)
    for _ in range(3):
        with pytest.raises((EOFError, OSError)):
            connect(port)
    connect(port)
    assert caplog.text.count("can't start new thread") == 1


def test_strangers_write_no_lines_into_the_log(serve, caplog):
    port = serve(secret=None)
    with pytest.raises(Refused):
        connect(port, secret=None, wanted="\x1b[2J\nERROR: a line\ud800" + "x" * 500)
    wait_until(lambda: caplog.records, 10)
    (record,) = caplog.records
    assert not set("\n\x1b\ud800") & set(record.getMessage())
    assert "x" * 100 not in record.getMessage()
