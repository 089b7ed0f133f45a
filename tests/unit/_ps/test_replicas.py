"""A server and its replica on a partner: both apply the same, before an answer is given."""

import secrets

import cloudpickle
import keras
import pytest

from replicax._net import Message, RemoteError
from replicax._ps.hosts.contact import Dialer
from replicax._ps.hosts.member import NotOpen, start_member
from replicax._ps.server.replicas import NoReplica, Shadows

from server_messages import Asked, held, ones

SECRET = secrets.token_bytes(32)
SETTINGS = {"run": "run", "replicas": 1, "snapshot_dir": None, "snapshot_seconds": None}


class Member:
    """A server that listens, and a link of the coordinator to it; `Asked` asks through it."""

    def __init__(self, index, settings=SETTINGS):
        self.endpoint = start_member("server", index, SECRET)
        dial = Dialer(SECRET, "run", {"role": "chief"}, lambda: cloudpickle.dumps(settings))
        self.link = dial(self.endpoint.addresses)

    @property
    def node(self):
        return self.endpoint.state

    def handle(self, session, message):
        reply = self.link.call(message.op, message.head, message.buffers)
        return reply.head, reply.buffers

    def follow(self, partner, op="partner"):
        self.link.call(op, {"addresses": partner.endpoint.addresses})

    def shadow_of(self, owner):
        return self.node._shadows._shadows[owner]

    def die(self):
        self.endpoint.close()
        self.link.close()


@pytest.fixture
def start():
    members = []

    def start(index, **settings):
        members.append(Member(index, {**SETTINGS, **settings}))
        return members[-1]

    yield start
    for member in members:
        member.die()


@pytest.fixture
def pair(start):
    """A server that trains a table and a variable, and its partner."""
    first, second = start(0), start(1)
    asked = Asked(first)
    first.link.call("open", {"workers": True})
    asked.create(0, ones(8, 2), "table")
    asked.create(1, ones(3), "kernel")
    asked.host(keras.optimizers.Adam(0.1), [0, 1])
    asked.plan(cells=[1], tables=[0])
    return first, second, asked


def push(asked, closure, row=0):
    asked.push(closure, [ones(3), [row], ones(1, 2)])


def test_a_replica_is_what_the_server_is(pair):
    first, second, asked = pair
    push(asked, 0)
    first.follow(second)
    for closure in range(1, 4):
        push(asked, closure, row=closure)
    asked.create(2, ones(1), "later")
    asked.plan("q", writes=[2])
    asked.push(4, [ones(1)], "q")
    asked.change("tune", {"id": 0, "set": {"learning_rate": 0.5}})
    assert held(second.shadow_of(0)) == held(first.node.server)
    assert second.shadow_of(0).plans == first.node.server.plans


def test_the_next_process_has_all_and_the_one_before_is_not_heard_any_more(pair, start):
    first, second, asked = pair
    first.follow(second)
    push(asked, 0)
    before = held(first.node.server)
    third = start(0)
    third.follow(second, "recover")
    assert held(third.node.server) == before
    push(Asked(third), 1)
    assert held(second.shadow_of(0)) == held(third.node.server)
    for _ in range(2):
        with pytest.raises(RemoteError, match="Deposed") as caught:
            push(asked, 2)
        assert caught.value.kind == "Deposed"
    assert held(second.shadow_of(0)) == held(third.node.server)


def test_when_the_partner_dies_the_server_goes_on_and_when_it_is_back_it_has_all(
    pair, start, caplog
):
    first, second, asked = pair
    first.follow(second)
    second.die()
    push(asked, 0)
    assert "Parameter server 0 goes on without a replica until its partner is back" in caplog.text
    push(asked, 1)
    again = start(1)
    first.follow(again)
    push(asked, 2)
    assert held(again.shadow_of(0)) == held(first.node.server)


def test_when_only_the_connection_breaks_the_replica_is_sent_anew(pair, caplog):
    first, second, asked = pair
    first.follow(second)
    push(asked, 0)
    first.node._mirror._link.close()
    push(asked, 1)
    assert held(second.shadow_of(0)) == held(first.node.server)
    assert caplog.text == ""
    # Also if the partner has lost it.
    second.node._shadows._shadows.clear()
    push(asked, 2)
    assert held(second.shadow_of(0)) == held(first.node.server)


def test_who_has_no_replica_says_so(start):
    first, second = start(0), start(1)
    with pytest.raises(RemoteError, match="RemoteError"):
        first.follow(second, "recover")
    with pytest.raises(NoReplica):
        Shadows(SETTINGS).op_shadow_state(Message("shadow_state", {"owner": 0, "life": "x"}, []))


def test_workers_are_let_in_when_the_coordinator_knows_what_is_there(start):
    asked = Asked(start(0).node)
    with pytest.raises(NotOpen):
        asked.plan(writes=[])
    reply = asked.ask("open", {"workers": True})
    assert (reply.head["clock"], reply.head["changes"]) == (0, 0)
    asked.plan(writes=[])
