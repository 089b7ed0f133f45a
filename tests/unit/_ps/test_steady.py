"""The coordinator's way to servers that die meanwhile."""

import gc
from types import SimpleNamespace

import pytest

from replicax._ps.queue.lanes import ServerGone
from replicax._ps.store.servers import Client as Links
from replicax._ps.store.servers import SteadyClient


class Client:
    num_servers = 2

    def __init__(self):
        self.calls = []
        self.gone = []

    def call(self, server, op, head, buffers):
        self.calls.append((server, op, dict(head)))
        if self.gone:
            raise self.gone.pop()
        return SimpleNamespace(head=head)


def with_servers(call):
    while True:
        try:
            return call()
        except ServerGone:
            pass


@pytest.fixture
def steady():
    steady = SteadyClient(Client())
    steady.client = steady._client
    steady.outlive = with_servers
    return steady


def test_a_change_is_asked_again_by_the_same_number(steady):
    steady.client.gone = [ServerGone(0), ServerGone(0)]
    steady.call(0, "write", {"items": []})
    steady.call(0, "write", {"items": []})
    assert [head["request"] for _, _, head in steady.client.calls] == [0, 0, 0, 1]
    assert steady.changes(0) == 2
    assert steady.changes(1) == 0


def test_what_changes_nothing_has_no_number(steady):
    steady.call(1, "read", {"cells": []})
    steady.call(1, "tune", {"id": 0, "set": {}})
    assert ["request" in head for _, _, head in steady.client.calls] == [False, False]
    heads = [steady.call(server, "tune", {"set": {"iterations": 1}}).head for server in (0, 1)]
    assert [head["request"] for head in heads] == [0, 1]
    assert steady.changes(0) == steady.changes(1) == 1


def test_an_error_of_the_server_is_no_change(steady):
    steady.client.gone = [ValueError("wrong")]
    with pytest.raises(ValueError, match="wrong"):
        steady.call(0, "create", {})
    assert steady.changes(0) == 0


def test_links_end_with_a_client_that_nobody_has_closed():
    closed = []
    link = SimpleNamespace(call=lambda *_: "answer", close=lambda: closed.append(True))
    client = Links(lambda addresses: link, [("somewhere",), ("unused",)])
    assert client.call(0, "ping") == "answer"
    del client
    gc.collect()
    assert closed == [True]
