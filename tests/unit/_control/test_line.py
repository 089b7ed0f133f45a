"""Lines between threads of one process: exchanges, and what becomes of them when one is lost."""

import os
import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from replicax._control import (
    Limits,
    Ticks,
    _hub,
    _member,
    _rendezvous,
    _worker_table,
    open_channel,
    wait_until_open,
)
from replicax._control._channel import Calls
from replicax._core.errors import ClusterError, UsageError, WorkerLost
from replicax._net import encode, hang_up
from replicax.launch._ports import free_ports

from helpers import begun_threads, wait_until


def answer(sock):
    """What comes until the other end hangs up, or even resets the connection."""
    try:
        return sock.recv(99)
    except ConnectionResetError:
        return b""


def welcomed(cluster):
    """A wire to the hub of worker 1, which says nothing more."""
    place = _rendezvous.CHIEF.format(cluster.size)
    wire, _ = _rendezvous._welcomed(cluster.address, 1, place, time.monotonic() + 30, None)
    return wire


class Cluster:
    """Some workers in threads of this process."""

    def __init__(self, size, port, limits):
        self.size, self.address, self.limits = size, ("127.0.0.1", port), limits
        self.lost, self.notices = [[] for _ in range(size)], []
        self._pool = ThreadPoolExecutor(2 * size)
        self.lines = []

    def open(self, indices=None):
        indices = range(self.size) if indices is None else indices
        opened = [self.submit(self._open, index) for index in indices]
        self.lines = [future.result(30) for future in opened]
        return self.lines

    def submit(self, fn, *args):
        return self._pool.submit(fn, *args)

    def all(self, fn):
        """What a function of a line gives in each worker at the same time."""
        return [each.result(30) for each in [self.submit(fn, line) for line in self.lines]]

    def close(self):
        for line in reversed(self.lines):
            line.close()
        self._pool.shutdown()

    def _open(self, index):
        return open_channel(
            index,
            self.size,
            "{}:{}".format(*self.address),
            limits=self.limits,
            on_failure=self.lost[index].append,
            on_notice=self.notices.append,
        )


@pytest.fixture
def cluster():
    """Make a cluster; all that were made are closed in the end."""
    with ExitStack() as cleanup:

        def make(size=2, **limits):
            (port,) = cleanup.enter_context(free_ports(1))
            # Threads do not end, so nobody waits for that.
            made = Cluster(size, port, Limits(**{"joining": 30.0, "ending": 0.0, **limits}))
            cleanup.callback(made.close)
            return made

        yield make


def test_everyone_gets_what_all_have_given(cluster):
    three = cluster(3)
    three.open()
    assert (
        three.all(lambda line: line.exchange("x", [line.index, None]))
        == [[[0, None], [1, None], [2, None]]] * 3
    )
    assert [(line.index, line.size, line.is_chief) for line in three.lines] == [
        (0, 3, True),
        (1, 3, False),
        (2, 3, False),
    ]


def test_who_is_waited_for_and_for_how_long(cluster, monkeypatch):
    moments = [1.0, 5.0, 10.0, 10.0]  # of two exchanges; to the first one worker 1 comes late
    monkeypatch.setattr(_worker_table, "clock", lambda: moments.pop(0))
    two = cluster(2)
    chief, other = two.open()
    for left in (3, 1):
        waits = two.submit(chief.exchange, "x", None)
        wait_until(lambda left=left: len(moments) == left)
        time.sleep(0.05)  # by so much the other one is late
        other.exchange("x", None)
        waits.result(30)
    assert chief.lateness() == [0.0, 4.0]
    assert other.lateness() == []
    assert chief.waited() > 0.05  # of twice that


def test_of_many_workers_those_behind_the_middle_are_late(monkeypatch):
    moments = iter([1.0, 1.5, 4.0, 2.0, 9.0, 3.0])
    monkeypatch.setattr(_worker_table, "clock", lambda: next(moments))
    ledger = _worker_table.WorkerTable(3, Ticks(1.0))
    for number in (1, 2):
        for worker in range(3):
            ledger.give(worker, ("x", number), None)
    # The middle ones came at 1.5 and at 3.
    assert ledger.lateness() == [0.0, 6.0, 2.5]


def test_who_offers_a_value_does_not_wait_until_he_asks(monkeypatch):
    moments = iter([1.0, 2.0, 4.0, 5.0, 8.0])
    monkeypatch.setattr(_worker_table, "clock", lambda: next(moments))
    ledger = _worker_table.WorkerTable(2, Ticks(1.0))
    assert ledger.give(0, ("x", 1), "a", early=True) is None
    assert ledger.states()[0].waits == ()
    ledger.wait(0, ("x", 1))
    (wait,) = ledger.states()[0].waits
    assert (wait.name, wait.number, wait.missing) == ("x", 1, (1,))
    assert ledger.give(1, ("x", 1), "b", early=True) == ["a", "b"]
    ledger.wait(1, ("x", 1))  # when the answer is under way
    assert ledger.states()[1].waits == ()
    for worker in range(2):  # nobody waits for anybody
        ledger.give(worker, ("x", 2), None, early=True)
    assert ledger.lateness() == [0.0, 2.0]


def test_who_offers_first_is_not_late_though_he_never_waits(monkeypatch):
    moments = iter([0.0, 1.0, 1.0, 10.0])
    monkeypatch.setattr(_worker_table, "clock", lambda: next(moments))
    ledger = _worker_table.WorkerTable(4, Ticks(1.0))
    ledger.give(0, ("x", 1), None, early=True)
    for worker in (1, 3, 2):
        ledger.give(worker, ("x", 1), None)
    assert ledger.lateness() == [0.0, 0.0, 9.0, 0.0]


def test_what_was_withdrawn_was_never_given():
    ledger = _worker_table.WorkerTable(2, Ticks(1.0))
    for worker in range(2):
        assert ledger.give(worker, ("x", 1), None, early=True) is None
        ledger.withdraw(worker, ("x", 1))
    assert ledger.give(0, ("x", 1), "a") is None
    assert ledger.give(1, ("x", 1), "b") == ["a", "b"]
    ledger.withdraw(0, ("x", 1))  # too late


def test_offers_are_answered_when_all_have_given(cluster):
    two = cluster()
    chief, other = two.open()
    first, second, third = (chief.offer("x", number) for number in range(3))
    asked = two.submit(second.answers)  # before there is an answer
    assert other.offer("x", 10).answers() == [0, 10]
    assert first.answers() == [0, 10]
    assert other.exchange("x", 11) == [1, 11]
    assert asked.result(30) == [1, 11]
    third.withdraw()
    assert two.all(lambda line: line.exchange("y", line.index)) == [[0, 1]] * 2
    other.offer("x", 12)
    assert two.all(lambda line: line.exchange("z", line.index)) == [[0, 1]] * 2
    assert not other._calls.is_answered(("x", 3))


def test_an_answer_that_comes_when_nobody_wants_it_any_more_is_not_kept():
    calls = Calls()
    left, wanted = calls.begin("x"), calls.begin("x")
    calls.forget(left)
    for key in (left, wanted):
        calls.answer(key, [0])
    assert not calls.is_answered(left)
    assert calls.wait(wanted) == [0]
    calls.answer(wanted, [1])
    assert not calls.is_answered(wanted)
    calls.answer(("y", 1), b"", may_be_early=True)  # of the chief, who waits for nobody
    assert calls.wait(calls.begin("y")) == b""


class Counted(dict):
    """Counts how often it is encoded: JSON asks a subclass of dict for its items."""

    encoded = 0

    def items(self):
        self.encoded += 1
        return super().items()


@pytest.mark.parametrize(
    "give",
    [
        lambda line, value: line.exchange("x", value),
        lambda line, value: line.offer("x", value).answers(),
    ],
)
def test_a_value_is_encoded_once_by_its_giver(cluster, give):
    two = cluster(2)
    two.open()
    values = [Counted(a=1), Counted(b=[2, None])]
    assert (
        two.all(lambda line: give(line, values[line.index])) == [[{"a": 1}, {"b": [2, None]}]] * 2
    )
    assert [value.encoded for value in values] == [1, 1]


def test_values_are_what_json_makes_of_them(cluster):
    two = cluster()
    two.open()
    assert two.all(lambda line: line.exchange("x", (1, "å")))[0] == [[1, "å"]] * 2


def test_equal_values_travel_once(cluster, monkeypatch):
    sizes = []
    whole = _hub.encode

    def noted(op, head, buffers=()):
        message = whole(op, head, buffers)
        sizes.append(message.size) if op == "all" else None
        return message

    monkeypatch.setattr(_hub, "encode", noted)
    six = cluster(6)
    six.open()
    value = {"text": "x" * 1000}
    assert six.all(lambda line: line.exchange("x", value)) == [[value] * 6] * 6
    found = six.all(lambda line: line.exchange("x", [value, line.index // 3]))
    assert found == [[[value, 0]] * 3 + [[value, 1]] * 3] * 6
    assert [size // 1000 for size in sizes] == [1, 2]


def test_long_values_and_short_ones_keep_their_order(cluster):
    two = cluster()
    chief, other = two.open()
    values = [["x" * size] for size in (1, 200_000, 2, 70_000, 3, 3)]
    offers = [[line.offer("x", value) for value in values] for line in (other, chief)]
    for line in offers:
        assert [offer.answers() for offer in line] == [[value] * 2 for value in values]


def test_everyone_knows_the_hosts(cluster):
    three = cluster(3)
    assert [line.hosts() for line in three.open()] == [[socket.gethostname()] * 3] * 3


def test_names_do_not_wait_for_each_other(cluster):
    two = cluster()
    chief, other = two.open()
    early = [two.submit(chief.exchange, "a", 1), two.submit(other.exchange, "b", 2)]
    late = [two.submit(chief.exchange, "b", 3), two.submit(other.exchange, "a", 4)]
    assert [each.result(30) for each in early + late] == [[1, 4], [3, 2], [3, 2], [1, 4]]


def test_one_is_enough_for_any(cluster):
    two = cluster()
    two.open()
    assert two.all(lambda line: line.any("x", line.index == 1)) == [True, True]
    assert two.all(lambda line: line.any("x", False)) == [False, False]


def test_nobody_passes_a_barrier_alone(cluster):
    two = cluster()
    chief, other = two.open()
    early = two.submit(other.barrier, "x")
    wait_until(lambda: not early.done())
    chief.barrier("x")
    assert early.result(30) is None


def test_the_chief_gives_many_bytes_to_all(cluster):
    three = cluster(3)
    three.open()
    payload = bytes(range(256)) * 40_000  # more than a socket takes at once
    found = three.all(lambda line: line.from_chief("x", b"" if line.index else payload))
    assert found == [payload] * 3
    found = three.all(lambda line: line.from_chief("x", b"" if line.index else b"more"))
    assert found == [b"more"] * 3


def test_small_things_pass_while_many_bytes_are_on_their_way(cluster):
    two = cluster()
    chief, other = two.open()
    for _ in range(3):
        chief.from_chief("x", bytes(20_000_000))
    assert two.all(lambda line: line.exchange("y", line.index)) == [[0, 1]] * 2
    assert [len(other.from_chief("x", b"")) for _ in range(3)] == [20_000_000] * 3


def test_one_worker_alone_agrees_with_itself(cluster):
    (line,) = cluster(1).open()
    assert line.exchange("x", 1) == [1]
    assert line.from_chief("x", b"1") == b"1"
    line.leave()


def test_only_json_is_exchanged(cluster):
    (line,) = cluster(1).open()
    with pytest.raises(UsageError, match=r"\{1\}"):
        line.exchange("x", {1})


def test_all_leave_together(cluster):
    two = cluster()
    chief, other = two.open()
    early = two.submit(chief.leave)
    wait_until(lambda: not early.done())
    other.leave()
    assert early.result(30) is True
    assert two.lost == [[], []]
    with pytest.raises(ClusterError, match="`leave`"):
        chief.barrier("x")


def test_who_closes_without_leaving_is_lost(cluster):
    three = cluster(3)
    lines = three.open()
    waiting = three.submit(lines[0].barrier, "x")
    lines[1].close()
    with pytest.raises(WorkerLost, match="worker 1 died: its connection closed"):
        waiting.result(30)
    wait_until(lambda: three.lost[2])
    assert [[each.workers for each in lost] for lost in three.lost] == [[(1,)], [], [(1,)]]
    with pytest.raises(WorkerLost, match="worker 1 died"):
        lines[2].barrier("y")


def test_the_chief_is_lost_to_all_if_it_closes(cluster):
    three = cluster(3)
    lines = three.open()
    lines[0].close()
    wait_until(lambda: three.lost[1] and three.lost[2])
    assert [[each.workers for each in lost] for lost in three.lost] == [[], [(0,)], [(0,)]]
    assert f"worker 0 (host {socket.gethostname()}, pid " in str(three.lost[1][0])


def test_who_fails_is_named_with_its_error(cluster):
    two = cluster()
    chief, other = two.open()
    other.fail("ValueError: no luck")
    wait_until(lambda: two.lost[0])
    assert "worker 1 failed with an unhandled exception" in str(two.lost[0][0])
    assert "ValueError: no luck" in str(two.lost[0][0])
    assert two.lost[1] == []  # it ends by its own error
    chief.explain(RuntimeError("connection reset by peer"))


def test_who_ended_early_is_named_and_ends_in_its_own_way(cluster):
    two = cluster()
    chief, other = two.open()
    leaving = two.submit(other.leave)
    with pytest.raises(WorkerLost, match=r"(?s)worker 1 ended while .*'x' \(call 1\)"):
        chief.barrier("x")
    assert leaving.result(30) is False
    assert [len(lost) for lost in two.lost] == [1, 0]


def test_the_others_wait_longer_for_nothing_after_a_preemption(cluster):
    two = cluster(silence=0.5)
    chief, other = two.open()
    leaving = two.submit(lambda: other.leave(preempted=True))
    waiting = two.submit(chief.barrier, "x")
    wait_until(lambda: two.notices)  # with a plain `leave` this would be the end
    assert not waiting.done()
    other.close()
    assert leaving.result(30) is True
    chief.close()
    with pytest.raises(ClusterError, match="`leave`"):
        waiting.result(30)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_who_says_what_cannot_be_understood_is_lost(cluster):
    two = cluster()
    opening = two.submit(two.open, [0])
    wire = welcomed(two)
    opening.result(30)
    wire.send(encode("beat", {"step": "three"}))
    wait_until(lambda: two.lost[0])
    wire.close()
    # Its thread ends by an exception, which must not become that of the next test.
    wait_until(lambda: not begun_threads("replicax-session"))
    assert "worker 1 died: its connection closed" in str(two.lost[0][0])


def test_an_exchange_has_a_timeout_if_one_is_set(cluster):
    two = cluster(timeout=0.5)
    chief, _ = two.open()
    with pytest.raises(WorkerLost, match=r"worker 1 kept others waiting longer than .* 0\.5 s"):
        chief.barrier("x")


def test_there_is_a_notice_when_somebody_waits_long(cluster):
    two = cluster(silence=1.0)
    chief, other = two.open()
    waiting = two.submit(other.from_chief, "x", b"")
    stop = threading.Event()

    def work():
        while not stop.is_set():
            pass

    working = two.submit(work)  # who is not idle is not to blame
    wait_until(lambda: two.notices)
    stop.set()
    working.result(30)
    assert re.search(r"worker 1 has waited \d+ s for worker 0", two.notices[0])
    chief.from_chief("x", b"1")
    assert waiting.result(30) == b"1"


def test_an_error_without_a_cause_elsewhere_is_not_explained(cluster):
    (line,) = cluster(1).open()
    assert line.explain(RuntimeError("out of memory"), seconds=0.01) is None


def test_who_does_not_speak_as_a_worker_is_not_let_in(cluster):
    two = cluster()
    opening = two.submit(two.open, [0])
    assert wait_until_open(two.address, 30)
    for said in (
        b"".join(encode("give", {}).pieces),
        b"\xff\xff\xff\xff" + b"x" * 9999,
        b"GET / HTTP/1.1\r\n\r\n",
        b"RXnet002s" + b"x" * 9999,
        b"RXnet002o" + b"x" * 9999,
    ):
        with socket.create_connection(two.address, 30) as sock:
            sock.sendall(said)
            assert len(answer(sock)) in (0, 33)  # no more than a nonce
    two.lines = [*two.open([1]), *opening.result(30)]
    assert two.all(lambda line: line.exchange("x", 1)) == [[1, 1]] * 2


def test_who_says_nothing_is_lost(cluster):
    two = cluster(silence=1.0)
    opening = two.submit(two.open, [0])
    wire = welcomed(two)
    opening.result(30)
    wait_until(lambda: two.lost[0])
    wire.close()
    assert "worker 1 fell silent: it sent nothing for 1 s" in str(two.lost[0][0])
    assert f"worker 1 (host {socket.gethostname()}, pid {os.getpid()})" in str(two.lost[0][0])


@pytest.mark.parametrize("how", ["before the answer", "after it", "while it is there"])
def test_a_worker_whose_connection_breaks_while_all_join_connects_again(cluster, monkeypatch, how):
    monkeypatch.setattr(_member, "_SIGN_OF_LIFE", 0.3)
    three = cluster(3)
    real, broken, parted = _hub.Hub._serve, [], threading.Event()

    def serve(self, connection):
        if connection.caller.hello["index"] != 1 or broken:
            real(self, connection)
            return
        broken.append(connection)
        if how == "after it":
            hang_up(connection.sock)
        if how != "before the answer":
            real(self, connection)
        parted.set()

    monkeypatch.setattr(_hub.Hub, "_serve", serve)
    opening = [three.submit(three._open, index) for index in (0, 1)]
    wait_until(lambda: broken)
    if how == "while it is there":
        hang_up(broken[0].sock)
    assert parted.wait(30)  # else worker 2 could be the last one before the hub knows of the break
    opening.append(three.submit(three._open, 2))
    three.lines = [each.result(30) for each in opening]
    assert three.all(lambda line: line.exchange("x", line.index)) == [[0, 1, 2]] * 3
    assert three.lost == [[], [], []]


@pytest.mark.parametrize("end", [0, 1])
def test_all_hear_whose_connection_alters_messages(cluster, end):
    three = cluster(3)
    lines = three.open()
    wires = [lines[0]._link._hub._members[1].wire, lines[1]._link]
    wires[end]._session.outgoing.begin()  # as if one was left out on the way
    wires[end].send(encode("table", {}))
    wait_until(lambda: all(three.lost))
    assert [[each.workers for each in lost] for lost in three.lost] == [[(1,)]] * 3
    assert all("worker 1 had a message altered" in str(lost[0]) for lost in three.lost)


def test_who_is_cut_off_says_how_old_the_place_of_the_chief_is(cluster, monkeypatch):
    two = cluster()
    _, other = two.open()
    wait_until(lambda: other._latest)
    monkeypatch.setattr(other, "take", lambda message: None)
    received = other._link.received
    wait_until(lambda: other._link.received > received)  # nobody takes an earlier one any more
    other._latest_at -= 40.0
    other.lose_chief("silent")
    found = re.search(r"worker 0 .* last heard of (\d+) s before", str(two.lost[1][0]))
    assert int(found[1]) >= 40
