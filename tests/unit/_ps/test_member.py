"""A member waits for its coordinator, and notices when that is gone for good."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from replicax._ps import member as module
from replicax._ps.member import Endpoint
from replicax._ps.wire import Message


class State:
    def __init__(self):
        self.events = []

    def handle(self, session, message):
        return {"op": message.op}, ()

    def finish(self):
        self.events.append("finish")

    def close(self):
        self.events.append("close")


@pytest.fixture
def begin(monkeypatch):
    endpoints = []
    listener = SimpleNamespace(start=lambda: ("a",), close=lambda: None)
    monkeypatch.setattr(module, "Listener", lambda *_, **__: listener)

    def begin(grace=None):
        endpoints.append(Endpoint(State(), b"", host="h", port=0, grace=grace))
        return endpoints[-1]

    yield begin
    for endpoint in endpoints:
        endpoint.close()


def session(role):
    return SimpleNamespace(hello={"role": role}, state={})


def waiting(endpoint):
    thread = threading.Thread(target=endpoint.wait)
    thread.start()
    return thread


def test_goodbye_ends_it(begin):
    endpoint = begin()
    thread = waiting(endpoint)
    assert endpoint.handle(session("chief"), Message("goodbye", {}, [])) == ({}, ())
    thread.join(5)
    assert not thread.is_alive()
    assert endpoint.state.events == ["finish"]


def test_a_coordinator_that_is_gone_for_too_long_ends_it(begin):
    endpoint = begin(grace=0.05)
    first, second = session("chief"), session("chief")
    for one in (first, second, first):
        assert endpoint.handle(one, Message("ping", {}, [])) == ({"op": "ping"}, ())
    thread = waiting(endpoint)
    first.state.clear()
    thread.join(0.2)
    assert thread.is_alive()  # the other connection is there
    second.state.clear()
    thread.join(5)
    assert not thread.is_alive()


def test_a_coordinator_that_was_not_there_yet_is_waited_for(begin):
    endpoint = begin(grace=0.01)
    worker = session("worker")
    endpoint.handle(worker, Message("ping", {}, []))
    thread = waiting(endpoint)
    worker.state.clear()
    thread.join(0.1)
    assert thread.is_alive()
    endpoint.close()
    thread.join(5)


def test_one_that_comes_back_in_time_finds_it(begin):
    endpoint = begin(grace=0.3)
    first, second = session("chief"), session("chief")
    endpoint.handle(first, Message("ping", {}, []))
    thread = waiting(endpoint)
    first.state.clear()
    endpoint.handle(second, Message("ping", {}, []))
    thread.join(0.5)
    assert thread.is_alive()
    endpoint.close()
    thread.join(5)
