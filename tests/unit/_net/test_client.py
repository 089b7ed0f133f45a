"""What a call carries, what it raises, and what ends it."""

import contextlib
import os
import pickle
import socket
import subprocess
import sys
import threading
import time

import ml_dtypes
import numpy as np
import pytest

from replicax._core.errors import UsageError
from replicax._net import ConnectionLost, RemoteError, RequestClient, RequestServer

from helpers import begun_threads, wait_until


def arrays(seed=0):
    """Many buffers: empty, small, of all kinds, and one of 20 MB."""
    rng = np.random.default_rng(seed)
    small = [rng.integers(0, 256, size, dtype=np.uint8) for size in (0, 1, 63, 64, 65, 0, 4097)]
    odd = [
        np.float32(3.5).reshape(()),
        np.zeros((0, 3), np.float64),
        np.arange(6).reshape(2, 3).astype(ml_dtypes.bfloat16),
        b"bytes",
        b"",
        memoryview(bytearray(b"view")),
    ]
    return [*small, *odd, rng.random(2_500_000), np.full(7, 7.0)]


def as_bytes(buffers):
    return [np.asarray(b).tobytes() if isinstance(b, np.ndarray) else bytes(b) for b in buffers]


def test_a_call_carries_a_head_and_many_buffers_there_and_back(link):
    sent = arrays()
    head = {"text": "ü", "nested": {"list": [1, 2.5, None, True]}}
    for _ in range(2):  # the second time, shared memory is there already
        reply = link.call("push", head, sent)
        assert reply.head == {"op": "push", **head}
        assert [bytes(buffer) for buffer in reply.buffers] == as_bytes(sent)


def test_several_sides_can_be_asked_before_the_first_has_answered(serve, connect):
    started = threading.Barrier(3, timeout=30)

    def meet(session, message):
        started.wait()  # both handlers and this test
        return dict(message.head), message.buffers

    links = [connect(serve(meet)) for _ in range(2)]
    ends = [link.begin("meet", {"link": n}, [bytes([n])]) for n, link in enumerate(links)]
    started.wait()
    replies = [end() for end in ends]
    assert [reply.head for reply in replies] == [{"link": 0}, {"link": 1}]
    assert [bytes(reply.buffers[0]) for reply in replies] == [b"\0", b"\1"]


def test_what_was_begun_ends_before_another_asks(link):
    end = link.begin("push", {"first": True})
    other = threading.Thread(target=link.call, args=("push",))
    other.start()
    other.join(0.2)
    assert other.is_alive()
    assert end().head == {"op": "push", "first": True}
    other.join(30)
    assert not other.is_alive()


def test_what_cannot_be_begun_or_ended_leaves_the_link_to_others(serve, connect):
    def fail(session, message):
        raise KeyError(message.op)

    link = connect(serve(fail))
    with pytest.raises(UsageError, match="not C-contiguous"):
        link.begin("gaps", {}, [np.zeros((4, 4))[:, ::2]])
    end = link.begin("fail")
    with pytest.raises(RemoteError, match="KeyError"):
        end()
    with pytest.raises(RemoteError, match="KeyError"):
        link.call("fail")
    serve.listener.close()
    with pytest.raises(ConnectionLost):
        link.begin("gone")()


def test_a_call_may_carry_nothing(link):
    reply = link.call("ping")
    assert (reply.head, reply.buffers) == ({"op": "ping"}, [])
    assert [len(b) for b in link.call("ping", {}, [b"", np.zeros(0)]).buffers] == [0, 0]


def test_a_call_may_carry_more_buffers_than_one_system_call_takes(link):
    sent = [bytes([n % 251]) * (n % 5) for n in range(3000)]
    assert [bytes(buffer) for buffer in link.call("push", {}, sent).buffers] == sent


def test_received_buffers_are_writable_and_aligned_as_jax_wants_them(link):
    for buffer in link.call("pull", {}, arrays()).buffers:
        array = np.frombuffer(buffer, np.uint8)
        assert array.flags.writeable
        assert len(array) == 0 or array.ctypes.data % 64 == 0


def test_a_message_keeps_its_memory_while_others_arrive(link):
    kept = [link.call("pull", {}, [np.full(100_000, n)]).buffers[0] for n in range(12)]
    values = [set(np.frombuffer(buffer, np.int64)) for buffer in kept]
    assert values == [{n} for n in range(12)]


def test_writing_to_what_was_received_changes_nothing_elsewhere(serve, connect, way):
    weights = np.zeros(100_000)
    link = connect(serve(lambda session, message: ({}, [weights]), shared=way == "shared"), way)
    np.frombuffer(link.call("pull").buffers[0])[:] = 5
    assert not weights.any()
    assert not np.frombuffer(link.call("pull").buffers[0]).any()


def test_links_are_served_at_the_same_time(serve, connect, way):
    meet = threading.Barrier(4)

    def handle(session, message):
        meet.wait(60)  # nobody passes unless all four are here
        return {"who": session.hello["who"]}, message.buffers

    addresses = serve(handle, shared=way == "shared")
    links = [connect(addresses, way, hello={"who": who}) for who in range(4)]
    results = {}

    def ask(who):
        for n in range(5):
            reply = links[who].call("pull", {}, [np.full(50_000, 10 * who + n)])
            results[who, n] = (reply.head["who"], set(np.frombuffer(reply.buffers[0], np.int64)))

    threads = [threading.Thread(target=ask, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {(w, n): (w, {10 * w + n}) for w in range(4) for n in range(5)}


def test_threads_that_share_a_link_take_turns(link):
    got = {}

    def ask(who):
        for n in range(20):
            got[who, n] = link.call("x", {"who": who, "n": n}).head

    threads = [threading.Thread(target=ask, args=(who,)) for who in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all((head["who"], head["n"]) == key for key, head in got.items())
    assert len(got) == 80


def test_a_session_knows_who_called_and_keeps_what_the_handler_notes(serve, connect):
    def handle(session, message):
        session.state["calls"] = session.state.get("calls", 0) + 1
        return {"calls": session.state["calls"], **session.hello, "peer": session.peer}, []

    addresses = serve(handle)
    first = connect(addresses, hello={"role": "worker", "index": 3})
    second = connect(addresses, "unix")
    assert first.call("a").head == {"calls": 1, "role": "worker", "index": 3, "peer": "127.0.0.1"}
    assert first.call("a").head["calls"] == 2
    assert second.call("a").head == {"calls": 1, "peer": "this host"}


def test_what_the_handler_raises_is_raised_here_and_the_connection_goes_on(serve, connect, way):
    def handle(session, message):
        if message.op == "fail":
            raise KeyError("no variable 'w'")
        return {}, []

    link = connect(serve(handle), way)
    with pytest.raises(RemoteError, match=r"'fail' .*KeyError") as raised:
        link.call("fail", {}, [np.zeros(100_000)])
    assert (raised.value.kind, raised.value.text) == ("KeyError", "\"no variable 'w'\"")
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)
    assert link.call("go on").buffers == []


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (({"x": object()}, []), "TypeError"),
        (({}, [object()]), "TypeError"),
        (None, "TypeError"),
        (({}, [bytes(2000)]), "UsageError"),
    ],
)
def test_an_answer_that_cannot_be_sent_is_the_handlers_error(serve, connect, answer, kind):
    link = connect(serve(lambda s, m: answer if m.op == "bad" else ({}, []), largest=1000))
    with pytest.raises(RemoteError) as raised:
        link.call("bad")
    assert raised.value.kind == kind
    link.call("go on")


@pytest.mark.parametrize(
    ("head", "buffers", "error", "message"),
    [
        ({"x": object()}, (), TypeError, "not JSON serializable"),
        ({}, [np.zeros((4, 4))[:, 1]], UsageError, "ascontiguousarray"),
        ({}, [memoryview(b"abcd")[::2]], UsageError, "not C-contiguous"),
        ({}, [b""] * 65537, UsageError, "65536 .*65537"),
        ({}, [bytes(1000)] * 2, UsageError, "1000 bytes"),
        ({"x": "y" * (1 << 20)}, (), UsageError, "head .*1048"),
    ],
)
def test_what_cannot_be_sent_is_refused_before_a_byte_is(
    serve, connect, head, buffers, error, message
):
    link = connect(serve(), largest=1000)
    with pytest.raises(error, match=message):
        link.call("push", head, buffers)
    assert link.call("go on").head == {"op": "go on"}


class Stuck:
    """A handler that does not come back before it is let go."""

    def __init__(self):
        self.entered, self.released = threading.Event(), threading.Event()

    def __call__(self, session, message):
        self.entered.set()
        self.released.wait(60)
        return {}, []


@pytest.fixture
def stuck():
    handler = Stuck()
    yield handler
    handler.released.set()


def call_in_thread(link):
    """Call; gives the list that will hold what was raised, and the thread."""
    raised = []

    def call():
        try:
            link.call("wait")
        except Exception as error:
            raised.append(error)

    thread = threading.Thread(target=call)
    thread.start()
    return raised, thread


def test_a_call_waits_no_longer_than_its_timeout(serve, connect, way, stuck):
    link = connect(serve(lambda c, m: stuck(c, m) if m.op == "wait" else ({}, [])), way)
    link.call("go on", timeout=60)
    began = time.monotonic()
    with pytest.raises(ConnectionLost, match="no answer in time"):
        link.call("wait", timeout=0.2)
    assert time.monotonic() - began < 30
    stuck.released.set()


def test_a_timeout_is_of_one_call(serve, connect, way):
    def handle(caller, message):
        time.sleep(0.2 if message.op == "slow" else 0)
        return {}, []

    link = connect(serve(handle), way)
    link.call("quick", timeout=0.1)
    link.call("slow")


def test_who_has_begun_can_see_whether_there_is_an_answer(serve, connect, way, stuck):
    link = connect(serve(lambda c, m: stuck(c, m) if m.op == "wait" else ({"op": m.op}, [])), way)
    end = link.begin("go on")
    wait_until(link.is_answered)
    assert end(timeout=60).head == {"op": "go on"}
    end = link.begin("wait")
    assert not link.is_answered()
    with pytest.raises(ConnectionLost, match="no answer in time"):
        end(timeout=0.0)
    assert link.is_answered()  # it has ended: nobody needs to wait
    stuck.released.set()


def test_closing_a_link_wakes_who_waits(serve, connect, way, stuck):
    link = connect(serve(stuck), way)
    raised, thread = call_in_thread(link)
    assert stuck.entered.wait(60)
    link.close()
    thread.join(60)
    assert [type(error) for error in raised] == [ConnectionLost]
    assert "a connection that was closed" in str(raised[0])
    with pytest.raises(ConnectionLost, match="a connection that is closed"):
        link.call("again")
    stuck.released.set()


def test_a_listener_that_closes_wakes_who_waits(serve, connect, way, stuck):
    link = connect(serve(stuck), way)
    raised, thread = call_in_thread(link)
    assert stuck.entered.wait(60)
    # Its handler comes back when the caller has heard.
    threading.Thread(target=lambda: (thread.join(60), stuck.released.set())).start()
    serve.listener.close()
    thread.join(60)
    assert [type(error) for error in raised] == [ConnectionLost]
    assert "a peer that hung up" in str(raised[0])
    wait_until(lambda: not begun_threads(("replicax-listener", "replicax-session")))


def test_a_handler_may_close_its_listener(serve, connect):
    link = connect(serve(lambda session, message: (serve.listener.close(), [])))
    with pytest.raises(ConnectionLost):
        link.call("shut down")


PEER = """
import sys, time
from replicax._net import RequestServer
def handle(session, message):
    if message.op == "wait":
        time.sleep(600)  # until it is killed, with the call open
    return {}, message.buffers
listener = RequestServer(bytes(range(32)), handle)
print(*listener.start(), flush=True)
time.sleep(600)  # until it is killed
"""


@contextlib.contextmanager
def peer_process(folder):
    """A listener in a process of its own; gives the process and its addresses."""
    command = [sys.executable, "-c", PEER]
    environment = os.environ | {"TMPDIR": str(folder)}  # its socket is left there when it is killed
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            yield process, process.stdout.readline().split()
        finally:
            process.kill()


def test_a_process_that_is_killed_is_noticed_at_once(connect, short_folder):
    with peer_process(short_folder) as (process, addresses):
        links = [connect(addresses, way) for way in ("tcp", "shared")]
        sent = np.arange(200_000)
        for link in links:
            reply = link.call("echo", {}, [sent])
            assert np.array_equal(np.frombuffer(reply.buffers[0], np.int64), sent)
        waiting = [call_in_thread(link) for link in links]
        time.sleep(0.1)  # most calls have been sent by then; either way they must fail
        process.kill()
        for raised, thread in waiting:
            thread.join(60)
            assert [type(error) for error in raised] == [ConnectionLost]
        # What was received stays.
        assert np.array_equal(np.frombuffer(reply.buffers[0], np.int64), sent)
        with pytest.raises(ConnectionLost, match=r"at "):
            RequestClient.connect(addresses, bytes(range(32)))


def test_a_call_that_is_interrupted_ends_the_connection(link, monkeypatch):
    def interrupted():
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(link._connection, "receive", interrupted)
        link.call("x")
    with pytest.raises(ConnectionLost):  # and not the answer to the call before
        link.call("y")


def test_the_fastest_address_is_taken_and_tcp_if_it_does_not_work(serve, connect, secret):
    unix, tcp = serve()
    gone = unix + "-gone"
    elsewhere = unix.replace("unix://", "unix://another-")
    for addresses, expected in (([tcp, unix], unix), ([gone, tcp], tcp), ([elsewhere, tcp], tcp)):
        link = RequestClient.connect(addresses, secret)
        assert link.address == expected
        assert link.call("x").head == {"op": "x"}
        link.close()


def test_a_listener_that_never_answers_is_given_up_on(secret):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with pytest.raises(ConnectionLost, match=f"no answer in time at tcp://127.0.0.1:{port}"):
            RequestClient.connect([f"tcp://127.0.0.1:{port}"], secret, timeout=0.1)


def test_a_listener_is_found_at_the_port_that_was_asked_for(serve, connect, secret):
    *_, address = serve()
    port = int(address.rpartition(":")[2])
    with pytest.raises(OSError, match="in use"):
        RequestServer(secret, lambda s, m: ({}, []), port=port).start()
