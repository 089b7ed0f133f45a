"""Where workers first meet: all come, one does not, strangers come, and numbers that do not fit."""

from __future__ import annotations

import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import SimpleNamespace

import pytest

from replicax._control import _meeting, meet, wait_until_open
from replicax._core.errors import ClusterError
from replicax._net import Refused
from replicax.launch._ports import free_ports

OFFER = {"port": 7, "token": "x"}


@pytest.fixture
def port():
    with free_ports(1) as (port,):
        yield port


@pytest.fixture
def come(port):
    """Let a worker come, in a thread; what comes of it is a future."""
    with ThreadPoolExecutor(8) as pool:

        def come(index, size, seconds=30.0):
            offer = None if index else OFFER
            return pool.submit(meet, f"127.0.0.1:{port}", index, size, seconds=seconds, offer=offer)

        yield come


def connected(port):
    """A connection to the chief, as soon as it listens."""
    end = time.monotonic() + 30
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), 30)
        except OSError:
            assert time.monotonic() < end
            time.sleep(0.01)


def results(*futures):
    return [future.result(40) for future in futures]


def test_all_get_what_the_chief_offers(come):
    assert results(*[come(index, 3) for index in (0, 1, 2)]) == [OFFER] * 3


def test_who_waits_for_somebody_to_listen_goes_on_then_or_when_the_time_is_over(port):
    address = f"127.0.0.1:{port}"
    wait_until_open(address, 0.01)  # nobody does
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait_until_open, address, 100)
        with socket.create_server(("127.0.0.1", port)) as listening:
            waiting.result(40)
            listening.accept()[0].close()


def to_itself(address):
    """A connection as TCP makes it now and then where nobody listens: to its own port."""
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(address)
    sock.connect(address)
    return sock


@pytest.mark.parametrize(
    "reach",
    [
        lambda address: _meeting._connect(address, 1, time.monotonic() + 100).close(),
        lambda address: wait_until_open("{}:{}".format(*address), 100),
    ],
)
def test_who_reaches_himself_tries_again(port, monkeypatch, reach):
    with socket.create_server(("127.0.0.1", 0)) as chief:
        there = socket.create_connection(chief.getsockname(), 100)
        found = [there, to_itself(("127.0.0.1", port))]
        monkeypatch.setattr(_meeting.socket, "create_connection", lambda *_: found.pop())
        reach(("127.0.0.1", port))
        assert not found


def test_who_reaches_himself_has_not_reached_anybody(port, monkeypatch):
    address = "127.0.0.1", port
    monkeypatch.setattr(_meeting.socket, "create_connection", lambda *_: to_itself(address))
    with pytest.raises(ConnectionRefusedError, match="nobody listens there"):
        _meeting._connected(address, 100)


def test_who_waits_longer_looks_less_often(port, monkeypatch):
    slept = []
    clock = SimpleNamespace(monotonic=lambda: sum(slept), sleep=slept.append)
    monkeypatch.setattr(_meeting, "time", clock)
    wait_until_open(f"127.0.0.1:{port}", 5)
    assert slept[0] == 0.005 and slept == sorted(slept) and slept[-1] == 0.1


def test_workers_may_come_before_the_chief(come):
    early = [come(2, 3), come(1, 3)]
    time.sleep(0.3)
    assert results(come(0, 3), *early) == [OFFER] * 3


def test_the_port_is_free_afterwards(come, port):
    results(come(0, 2), come(1, 2))
    with socket.create_server(("127.0.0.1", port)):
        pass


def test_all_say_who_is_missing(come, port):
    chief, other = come(0, 4, seconds=5.0), come(1, 4)
    with pytest.raises(
        ClusterError, match=rf"nothing from workers 2 and 3 in \d+ s at port {port}"
    ):
        chief.result(40)
    with pytest.raises(ClusterError, match="from workers 2 and 3; this is worker 1. Nobody can be"):
        other.result(40)


def test_a_worker_of_another_cluster_is_refused(come):
    chief = come(0, 2)
    with pytest.raises(Refused, match="the chief of 3 workers was looked .* of 2 workers is here"):
        come(1, 3).result(40)
    assert results(chief, come(1, 2)) == [OFFER] * 2


def test_a_number_is_given_once(come):
    chief, both = come(0, 3), [come(1, 3), come(1, 3)]
    while not any(future.done() for future in both):
        time.sleep(0.01)
    refused, taken = sorted(both, key=lambda future: not future.done())
    with pytest.raises(Refused, match=rf"worker 1 .* is there already: host .*, pid {os.getpid()}"):
        refused.result(40)
    assert results(chief, taken, come(2, 3)) == [OFFER] * 3


def test_the_port_must_be_free(come, port):
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(ClusterError, match=f"The chief listens at its own .* Received: port {port}"),
    ):
        come(0, 2).result(40)


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\xff\xff\xff\xff",
        b"RXnet001o" + bytes(32) + b"\xff\xff" + bytes(40),
    ],
)
def test_strangers_are_hung_up_on(come, port, said):
    chief = come(0, 2)
    with connected(port) as stranger:
        stranger.sendall(said)
        stranger.shutdown(socket.SHUT_WR)
        with suppress(ConnectionResetError):
            assert len(stranger.recv(99)) in (0, 33)  # no more than a nonce
    assert results(chief, come(1, 2)) == [OFFER] * 2


def test_who_says_nothing_keeps_nobody_waiting(come, port, monkeypatch):
    monkeypatch.setattr(_meeting, "_PATIENCE", 500.0)
    chief = come(0, 2)
    with connected(port), connected(port):
        assert results(chief, come(1, 2)) == [OFFER] * 2


def test_the_chief_must_be_reached(come, port):
    with pytest.raises(ClusterError, match=rf"at 127.0.0.1:{port} for \d+ s. It may not run, its"):
        come(1, 2, seconds=0.3).result(40)


def test_another_program_is_no_chief(port):
    with (
        socket.create_server(("127.0.0.1", port)) as server,
        ThreadPoolExecutor(1) as pool,
    ):
        worker = pool.submit(meet, f"127.0.0.1:{port}", 1, 2, seconds=30.0, offer=None)
        server.accept()[0].close()
        with pytest.raises(ClusterError, match="At the chief's address its workers meet"):
            worker.result(40)


def test_who_waits_long_says_so(come, port, monkeypatch):
    notices = []
    monkeypatch.setattr(_meeting, "print_notice", notices.append)
    monkeypatch.setattr(_meeting, "_NOTICE", 0.0)
    with pytest.raises(ClusterError):
        come(1, 2, seconds=0.5).result(40)
    with pytest.raises(ClusterError):
        come(0, 2, seconds=0.5).result(40)
    assert notices == [
        f"worker 1 still cannot reach the chief at 127.0.0.1:{port}",
        f"the chief still waits for worker 1 at port {port}",
    ]
