"""Round trips to several servers: at the same time, and all of them, also if one fails."""

import numpy as np
import pytest

from replicax._net import Message, RemoteError
from replicax._ps.queue.lanes import ServerGone
from replicax._ps.store.exchange import Traffic

META = {
    "reads": [
        {"parts": [[server, server, 0, 0]], "shape": [2], "dtype": "float32", "slot": None}
        for server in (0, 1)
    ],
    "tables": [],
    "pushes": [],
    "writes": [],
}


class Servers:
    """Two servers that note what they are asked, and raise what they are given."""

    num_servers = 2

    def __init__(self):
        self.log = []
        self.raised = {0: [], 1: []}

    def call(self, server, op, head=None, buffers=()):
        self.log.append((op, server))
        return Message("", {}, [])

    def begin(self, server, op, head=None, buffers=()):
        self.log.append(("asked", server))

        def end():
            self.log.append(("answered", server))
            if self.raised[server]:
                raise self.raised[server].pop(0)
            return Message("", {"clock": 5 + server}, [np.full(2, server, "float32").data])

        return end


@pytest.fixture
def servers():
    return Servers()


@pytest.fixture
def pull(servers):
    traffic = Traffic("digest", META, servers)
    return lambda: traffic.trip(1, outputs=None, pull=True)


def test_all_servers_are_asked_before_any_answer_is_waited_for(servers, pull):
    values, rows, clocks = pull()
    assert [value.tolist() for value in values] == [[0, 0], [1, 1]]
    assert (rows, clocks) == ([], {0: 5, 1: 6})
    pull()
    trip = [("asked", 0), ("asked", 1), ("answered", 0), ("answered", 1)]
    assert [entry for entry in servers.log if entry[0] != "plan"] == trip * 2
    assert servers.log.count(("plan", 0)) == servers.log.count(("plan", 1)) == 1


def test_every_answer_is_taken_although_a_server_is_gone(servers, pull):
    servers.raised[0] = [ServerGone(0)]
    with pytest.raises(ServerGone):
        pull()
    assert servers.log[-1] == ("answered", 1)  # or its link would be busy for ever


def test_a_server_that_knows_no_plan_is_told_it_and_asked_again(servers, pull):
    pull()
    servers.raised[1] = [RemoteError("UnknownPlan", "digest", "exchange", "here")]
    servers.log.clear()
    values, _, _ = pull()
    assert values[1].tolist() == [1, 1]
    assert servers.log[4:] == [("plan", 1), ("asked", 1), ("answered", 1)]


def test_what_a_server_raises_is_raised(servers, pull):
    servers.raised[1] = [RemoteError("KeyError", "17", "exchange", "here")]
    with pytest.raises(RemoteError, match="KeyError"):
        pull()
