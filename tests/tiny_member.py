"""A member that serves nothing: it listens, and says who it is to those who know the secret."""

import os
import signal
from pathlib import Path

import numpy as np

from replicax._net import RequestClient, RequestServer
from replicax._ps.hosts.cluster import place_of
from replicax._ps.hosts.contact import ABOUT, GOODBYE, Presence


class TinyEndpoint:
    """Answers what every member answers, and with what it was started."""

    def __init__(self, role, index, secret, host, port, at):
        self._presence = Presence(role, index)
        draws = np.random.random()
        self._given = {"pid": os.getpid(), "variables": dict(os.environ), "draws": draws}
        place = place_of(role, index, at)
        self._listener = RequestServer(secret, self._handle, host=host, port=port, place=place)
        self.addresses = self._presence.addresses = self._listener.start()

    def wait(self):
        self._presence.has_left.wait()

    def close(self):
        self._presence.has_left.set()
        self._listener.close()

    def _handle(self, session, message):
        is_ours = message.op in (ABOUT, GOODBYE)
        return self._presence.answer(message.op) if is_ours else self._given, ()


def start_member(role, index, secret, *, host="127.0.0.1", port=0, at=""):
    """Start one, or fail to, as the environment says."""
    once = os.environ.get("TINY_DIES_ONCE")
    if once and not Path(once).exists():
        Path(once).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if os.environ.get("TINY_FAILS") == role:
        raise OSError(f"{role} {index} has no disk")
    return TinyEndpoint(role, index, secret, host, port, at)


def about(member, secret, op="about"):
    """Ask a member who it is, or by another word with what it was started."""
    link = RequestClient.connect(member.addresses, secret)
    try:
        return link.call(op).head
    finally:
        link.close()
