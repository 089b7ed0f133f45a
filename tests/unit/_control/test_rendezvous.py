"""Where workers meet: all come, one does not, strangers come, and numbers that do not fit."""

import functools
import os
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from types import SimpleNamespace

import pytest

from replicax._control import Limits, _hub, _member, _rendezvous, open_channel, wait_until_open
from replicax._core.errors import ClusterError
from replicax._net import BROKEN, ConnectionLost, Refused, RequestClient, Secret, encode, sockets
from replicax.launch._ports import free_ports

from helpers import wait_until


def met(port, index, size, seconds=30.0, **more):
    """What a worker gets from all; then it leaves."""
    line = open_channel(
        index,
        size,
        f"127.0.0.1:{port}",
        limits=Limits(joining=seconds, ending=0.0),
        on_failure=lambda lost: None,
        **more,
    )
    try:
        found = line.exchange("index", index)
        line.leave()
    finally:
        line.close()
    return found


def by_all(size):
    """What all get if nobody is missing."""
    return [list(range(size))] * size


@pytest.fixture
def port():
    with free_ports(1) as (port,):
        yield port


@pytest.fixture
def come(port):
    """Let a worker come, in a thread; what comes of it is a future."""
    with ThreadPoolExecutor(8) as pool:
        yield functools.partial(pool.submit, met, port)


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


def test_who_waits_for_somebody_to_listen_goes_on_then_or_when_the_time_is_over(port):
    address = "127.0.0.1", port
    assert not wait_until_open(address, 0.01)  # nobody does
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(wait_until_open, address, 100)
        with socket.create_server(address) as listening:
            assert waiting.result(40)
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
        lambda address: _rendezvous.reach(
            address, None, index=1, wanted="", hello={}, deadline=time.monotonic() + 100
        ),
        lambda address: wait_until_open(address, 100),
    ],
)
def test_who_reaches_himself_tries_again(port, monkeypatch, reach):
    with socket.create_server(("127.0.0.1", 0)) as chief:
        there = socket.create_connection(chief.getsockname(), 100)
        found = [there, to_itself(("127.0.0.1", port))]
        monkeypatch.setattr(_rendezvous.socket, "create_connection", lambda *_: found.pop())
        monkeypatch.setattr(_rendezvous, "dial", lambda sock, *_, **__: sock.close())
        reach(("127.0.0.1", port))
        assert not found


def test_who_reaches_himself_has_not_reached_anybody(port, monkeypatch):
    address = "127.0.0.1", port
    monkeypatch.setattr(sockets.socket, "create_connection", lambda *_: to_itself(address))
    with pytest.raises(ConnectionRefusedError, match="nobody listens there"):
        sockets.connected(*address, 100)
    with pytest.raises(ConnectionLost, match="nobody listens there"):
        RequestClient.connect([f"tcp://127.0.0.1:{port}"], 32 * b"s")


def test_who_waits_longer_looks_less_often(port, monkeypatch):
    slept = []
    clock = SimpleNamespace(monotonic=lambda: sum(slept), sleep=slept.append)
    monkeypatch.setattr(sockets, "time", clock)
    wait_until_open(("127.0.0.1", port), 5)
    assert slept[0] == 0.005 and slept == sorted(slept) and slept[-1] == 0.1


def test_workers_may_come_before_the_chief(come):
    early = [come(2, 3), come(1, 3)]
    time.sleep(0.3)
    assert results(come(0, 3), *early) == by_all(3)


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
    with pytest.raises(ClusterError, match=r"Worker 1 .*from workers 2 and 3 in "):
        other.result(40)


def test_a_worker_of_another_cluster_is_refused(come):
    chief = come(0, 2)
    with pytest.raises(Refused, match="the chief of 3 workers was looked .* of 2 workers is here"):
        come(1, 3).result(40)
    assert results(chief, come(1, 2)) == by_all(2)


def test_a_worker_of_another_job_with_the_same_secret_is_refused(come):
    secret = Secret(b"sixteen bytes...")
    chief = come(0, 2, cluster="1f (worker a:1, b:1)", secret=secret)
    with pytest.raises(Refused, match=r"2e \(worker c:1.* looked .*1f \(worker a:1.* another job"):
        come(1, 2, cluster="2e (worker c:1, d:1)", secret=secret).result(40)
    same = come(1, 2, cluster="1f (worker a:1, b:1)", secret=secret)
    assert results(chief, same) == by_all(2)


def test_a_number_is_given_once(come):
    chief, both = come(0, 3), [come(1, 3), come(1, 3)]
    while not any(future.done() for future in both):
        time.sleep(0.01)
    refused, taken = sorted(both, key=lambda future: not future.done())
    with pytest.raises(Refused, match=rf"worker 1 .* is there already: host .*, pid {os.getpid()}"):
        refused.result(40)
    assert results(chief, taken, come(2, 3)) == by_all(3)


def hello_by_hand(port, index, size=2, sock=None, **more):
    """Say hello as worker `index`, and nothing else; gives the wire."""
    return _rendezvous.dial(
        sock or connected(port),
        None,
        place=f"worker {index}",
        wanted=_rendezvous.CHIEF.format(size),
        hello={"index": index, "host": "far", "pid": 7, **more},
        peer="the chief",
        deadline=time.monotonic() + 30,
        seconds=30,
    )


@contextmanager
def listening(port, size):
    """A hub that takes workers, and does not begin."""
    place = _rendezvous.CHIEF.format(size)
    hub = _hub.Hub(size, None, place, limits=Limits(), on_notice=lambda notice: None)
    hub.listen("127.0.0.1", port)
    try:
        yield hub
    finally:
        hub.close()


def test_a_worker_that_died_and_came_again_is_let_in(come, port):
    chief = come(0, 3)
    hello_by_hand(port, 1, 3).close()
    assert results(chief, come(1, 3), come(2, 3)) == by_all(3)


def test_a_worker_that_died_has_not_come(come, port):
    chief = come(0, 3, seconds=1.0)
    hello_by_hand(port, 1, 3).close()
    with pytest.raises(ClusterError, match="from worker 2, worker 1 .host far, pid 7. came"):
        chief.result(40)


def test_a_worker_that_does_not_answer_any_more_gives_its_place_up(come, port, monkeypatch):
    monkeypatch.setattr(_member, "_SIGN_OF_LIFE", 0.3)
    chief = come(0, 3)
    silent = hello_by_hand(port, 1, 3)  # as on a host that has lost its power
    assert results(chief, come(1, 3), come(2, 3)) == by_all(3)
    silent.close()


def test_nobody_begins_with_a_worker_that_does_not_answer_any_more(come, port, monkeypatch):
    monkeypatch.setattr(_member, "_SIGN_OF_LIFE", 0.3)
    chief = come(0, 3)
    silent, other = hello_by_hand(port, 1, 3), come(2, 3)
    time.sleep(1.0)  # all are there, as it seems
    assert not chief.done()
    assert results(chief, come(1, 3), other) == by_all(3)
    silent.close()


def test_many_silent_workers_are_given_up_together(port, monkeypatch):
    """One after the other would take 40 seconds."""
    monkeypatch.setattr(_member, "_SIGN_OF_LIFE", 2.0)
    with listening(port, 21) as hub:
        silent = [hello_by_hand(port, index, 21) for index in range(1, 21)]
        wait_until(hub._all_here)
        began = time.monotonic()
        assert len(_member.silent(hub._members)) == 20
        assert time.monotonic() - began < 10 * _member._SIGN_OF_LIFE
        for wire in silent:
            assert wire.receive().op == "ping"
            wire.close()


def test_who_takes_the_place_of_a_worker_that_leaves_does_not_wait(come, port, monkeypatch):
    monkeypatch.setattr(_member, "_SIGN_OF_LIFE", 1000.0)
    chief = come(0, 3)
    first = hello_by_hand(port, 1, 3)
    second = come(1, 3)
    assert first.receive().op == "ping"  # is it still there? It says nothing, and ends
    first.close()
    assert results(chief, second, come(2, 3)) == by_all(3)


def test_many_workers_may_come_at_once(port):
    with listening(port, 101) as hub:
        socks = [connected(port) for _ in range(100)]
        wires = [hello_by_hand(port, index, 101, sock) for index, sock in enumerate(socks, 1)]
        wait_until(hub._all_here)
        for wire in wires:
            wire.close()


def test_a_double_is_told_of_both(come, port, monkeypatch):
    hubs, real = [], _hub.Hub.listen
    monkeypatch.setattr(_hub.Hub, "listen", lambda self, *at: hubs.append(self) or real(self, *at))
    chief, first = come(0, 3), come(1, 3)
    wait_until(lambda: hubs and hubs[0]._missing() == [2])
    with pytest.raises(Refused, match=f"host far, pid 7, and .* host .*, pid {os.getpid()}"):
        hello_by_hand(port, 1, 3)
    assert results(chief, first, come(2, 3)) == by_all(3)


@pytest.mark.parametrize("index", [0, 2, -1, True, 1.0, "1", None, float("inf"), [1], 10**30])
def test_a_number_that_no_worker_has_is_refused(come, port, index):
    chief = come(0, 2)
    with pytest.raises(Refused):
        hello_by_hand(port, index)
    assert results(chief, come(1, 2)) == by_all(2)


def test_a_guest_that_sends_much_is_hung_up_on(come, port):
    chief = come(0, 3)
    wire = hello_by_hand(port, 1, 3)
    wire.send(encode("here", {"x": "x" * 5000}))
    with pytest.raises(BROKEN):
        wire.receive()
    wire.close()
    assert results(chief, come(1, 3), come(2, 3)) == by_all(3)


def test_the_chief_listens_on_the_interface_that_its_address_names(come, port):
    chief = come(0, 2)
    connected(port).close()
    with pytest.raises(OSError), socket.create_connection(("127.0.0.2", port), 5):
        pass
    assert results(chief, come(1, 2)) == by_all(2)


def test_a_name_that_nobody_knows_is_told_early_and_in_the_end(monkeypatch):
    notices = []
    monkeypatch.setattr(_rendezvous, "print_notice", notices.append)
    monkeypatch.setattr(_rendezvous, "_NAME_NOTICE", 0.1)
    with pytest.raises(ClusterError, match="chief-0.invalid"):
        open_channel(1, 2, "chief-0.invalid:1234", limits=Limits(joining=0.5))
    assert len(notices) == 1 and "chief-0.invalid" in notices[0]


def test_a_name_may_become_known_late(come, port, monkeypatch):
    real, asked = socket.create_connection, []

    def late(address, *args):
        asked.append(address)
        if len(asked) < 5:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return real(address, *args)

    monkeypatch.setattr(_rendezvous.socket, "create_connection", late)
    other = come(1, 2)
    assert results(come(0, 2), other) == by_all(2)


def test_the_port_must_be_free(come, port):
    with (
        socket.create_server(("127.0.0.1", port)),
        pytest.raises(ClusterError, match=f"port {port}"),
    ):
        come(0, 2).result(40)


def test_who_says_nothing_keeps_nobody_waiting(come, port, monkeypatch):
    monkeypatch.setattr(_hub, "PATIENCE", 500.0)
    chief = come(0, 2)
    with connected(port), connected(port):
        assert results(chief, come(1, 2)) == by_all(2)


def test_the_chief_must_be_reached(come, port):
    with pytest.raises(ClusterError, match=rf"at 127.0.0.1:{port} for \d+ s"):
        come(1, 2, seconds=0.3).result(40)


@contextmanager
def hanging_up(port):
    """Somebody who accepts connections and ends them, as a proxy whose target is not there yet."""
    ended = []
    with socket.create_server(("127.0.0.1", port)) as server:

        def run():
            with suppress(OSError):
                while True:
                    server.accept()[0].close()
                    ended.append(True)

        thread = threading.Thread(target=run)
        thread.start()
        yield ended
        server.shutdown(socket.SHUT_RDWR)
        thread.join(40)


def test_who_is_hung_up_on_comes_again(come, port):
    with hanging_up(port) as ended:
        other = come(1, 2)
        wait_until(lambda: len(ended) > 9)
    assert results(come(0, 2), other) == by_all(2)


def test_who_is_hung_up_on_until_the_end_says_so(port):
    with hanging_up(port), pytest.raises(ClusterError, match=f"127.0.0.1:{port}"):
        met(port, 1, 2, seconds=0.5)


def test_who_gets_no_answer_asks_again(come, port, monkeypatch):
    monkeypatch.setattr(_rendezvous, "PATIENCE", 0.1)
    monkeypatch.setattr(_rendezvous, "_GRACE", 0.1)
    with socket.create_server(("127.0.0.1", port)) as silent:
        other = come(1, 2)
        kept = [silent.accept()[0] for _ in range(2)]
    for sock in kept:
        sock.close()
    monkeypatch.undo()
    assert results(come(0, 2), other) == by_all(2)


def test_a_chief_may_come_again(come, port):
    with listening(port, 3) as first:
        other = come(1, 3)
        wait_until(lambda: first._missing() == [2])
    assert results(come(0, 3), come(2, 3), other) == by_all(3)


def test_who_waits_long_says_so(come, port, monkeypatch):
    notices = []
    monkeypatch.setattr(_rendezvous, "print_notice", notices.append)
    for module in (_hub, _rendezvous):
        monkeypatch.setattr(module, "NOTICE", 0.0)
    with pytest.raises(ClusterError):
        come(1, 2, seconds=0.5).result(40)
    with pytest.raises(ClusterError):
        come(0, 2, seconds=0.5, on_notice=notices.append).result(40)
    assert [notice.partition(": ")[0] for notice in notices] == [
        f"worker 1 still cannot reach the chief at 127.0.0.1:{port}",
        f"the chief still waits for worker 1 at port {port}",
    ]
