"""One connection: what is sent arrives whole, also when a signal comes in the midst of it."""

from __future__ import annotations

import signal
import socket
from contextlib import closing

import pytest

from replicax._control._wire import Wire, encode
from replicax._net import Seal, Session


def wires():
    """Two ends of a connection."""
    near, far = socket.socketpair()
    keys = b"there", b"back"
    there, back = ([Seal(key) for key in keys] for _ in range(2))
    return Wire(near, Session(*there)), Wire(far, Session(*reversed(back)))


class Interrupting:
    """A seal in the midst of whose work somebody types Ctrl-C."""

    def __init__(self, seal):
        self._seal = seal

    def tag(self, *pieces):
        tag = self._seal.tag(*pieces)
        signal.raise_signal(signal.SIGINT)
        return tag


def test_a_signal_waits_until_a_frame_is_sent(monkeypatch):
    near, far = wires()
    with closing(near), closing(far):
        session = near._session
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            interrupting = Session(Interrupting(session.outgoing), session.incoming)
            patched.setattr(near, "_session", interrupting)
            near.send(encode({"kind": "one"}), b"payload")
        near.send(encode({"kind": "two"}))
        assert far.receive() == ({"kind": "one"}, b"payload")
        assert far.receive() == ({"kind": "two"}, b"")
