"""A place for the state of a run: made for its coordinator, and given up some time after that."""

import logging
import pickle
import threading
from contextlib import closing
from types import SimpleNamespace

import pytest

from replicax._net import Message, RemoteError
from replicax._ps.hosts.contact import ABOUT, Dialer, Presence
from replicax._ps.hosts.member import Post, WrongRun, start_member

from helpers import begun_threads, wait_until


class State:
    life = "a life"

    def __init__(self, settings):
        self.settings, self.closed, self.abandoned = settings, False, False

    def handle(self, session, message):
        return {"op": message.op}, ()

    def close(self):
        self.closed = True

    def abandon(self):
        self.closed = self.abandoned = True


def session(run="run"):
    return SimpleNamespace(hello={"run": run}, state={})


def configured(post, run="run"):
    found = session(run)
    post.handle(found, Message("configure", {}, [pickle.dumps({"of": run})]))
    return found


@pytest.fixture
def post():
    post = Post(Presence("server", 0), State, kept=0.05, parting=0.05)
    yield post
    post.close()


def test_a_state_is_made_for_a_run_and_answers_for_no_other(post):
    assert post.handle(session(), Message("ping", {}, []))[0]["life"] is None
    with pytest.raises(WrongRun, match="'run'"):
        post.handle(session(), Message("read", {}, []))
    first = configured(post)
    state = post.state
    assert state.settings == {"of": "run"}
    assert post.handle(first, Message("read", {}, [])) == ({"op": "read"}, ())
    assert post.handle(session("x"), Message("ping", {}, []))[0]["life"] == "a life"
    again = configured(post)
    assert post.state is state
    other = configured(post, "another")
    assert state.abandoned
    for old in (first, again):
        with pytest.raises(WrongRun, match="'run'.*'another'"):
            post.handle(old, Message("read", {}, []))
    assert post.handle(other, Message("read", {}, [])) == ({"op": "read"}, ())


@pytest.mark.parametrize("role", ["server", "worker"])
@pytest.mark.parametrize("run", ["run", None])
def test_a_request_that_nobody_knows_is_answered_and_the_connection_goes_on(role, run):
    secret, settings = 32 * b"s", pickle.dumps({"run": "run"})
    endpoint = start_member(role, 0, secret)
    dial = Dialer(secret, run, {"role": "chief"}, (lambda: settings) if run else None)
    with closing(endpoint), closing(dial(endpoint.addresses)) as link:
        for op in ("of_a_later_version", "handle__"):
            with pytest.raises(RemoteError) as raised:
                link.call(op)
            assert raised.value.kind == ("UnknownOperation" if run else "WrongRun")
            assert (op if run else "None") in raised.value.text
        assert link.call(ABOUT).head["role"] == role


def test_a_state_is_given_up_when_its_coordinator_is_gone_for_too_long(post, caplog):
    caplog.set_level(logging.WARNING)
    first, second = configured(post), configured(post)
    state = post.state
    first.state.clear()
    threading.Event().wait(0.15)
    assert post.state is state  # there is another connection
    second.state.clear()
    wait_until(lambda: post.state is None)
    assert state.abandoned and post.run is None
    missed, forgotten = (record.getMessage() for record in caplog.records)
    assert "run run has gone without" in missed and "run run is gone" in forgotten
    configured(post)  # it was not, after all
    assert post.state is not state


def test_a_coordinator_that_comes_back_in_time_finds_its_state():
    post = Post(Presence("server", 0), State, kept=60)
    first = configured(post)
    state = post.state
    first.state.clear()
    (farewell,) = begun_threads("Thread-")
    second = configured(post)
    wait_until(lambda: not farewell.is_alive())
    assert post.state is state
    post.close()
    second.state.clear()  # nothing is left to be given up
    assert state.closed and not state.abandoned


@pytest.mark.parametrize("how", ["goodbye", "missed", "asked to end"])
def test_what_it_has_written_goes_when_nobody_will_come_for_it(how, caplog):
    post = Post(Presence("server", 0), State, kept=60, parting=0.01)
    chief = configured(post)
    state = post.state
    if how == "goodbye":
        post.handle(chief, Message("goodbye", {}, []))
    if how == "missed":
        chief.state.clear()
        wait_until(lambda: "has gone without" in caplog.text)
    post.close()
    assert state.closed and state.abandoned == (how != "asked to end")
    chief.state.clear()
