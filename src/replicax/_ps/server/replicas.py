"""A replica of each server on its partner: the partner applies each change before the answer.

`Mirror` sends, `Shadows` receive. Servers send each other messages instead of values: messages are
smaller, and the same updates of the same values give the same result.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, final

from replicax._core.errors import ClusterError
from replicax._net import ConnectionLost, Message, Refused, RemoteError, RequestClient
from replicax._ps.hosts.contact import Dialer
from replicax._ps.server import server_state
from replicax._ps.server.server import ParameterServer

if TYPE_CHECKING:
    from replicax._net import Reply

logger = logging.getLogger("replicax")


class Deposed(ClusterError):
    """Raised on a server that another process has replaced."""


class NoReplica(ClusterError):
    """Raised on a server that does not have the requested replica."""


@final
class Mirror:
    """Sends what a server applies to its partner, in the same order.

    `life` names the process of the server.
    """

    def __init__(self, server: ParameterServer, secret: bytes, run: str, life: str) -> None:
        self._server, self._life = server, life
        self._dial = Dialer(secret, run, {"role": "server", "index": server.index})
        self._sending = threading.Lock()
        self._link: RequestClient | None = None
        self._addresses: Sequence[str] = ()
        # used under the server's lock
        self.is_on = False  # whether there is a partner
        self._noted = self._sent = 0
        self._waiting: list[tuple[str, dict[str, Any], Sequence[Any]]] = []

    def settle(self) -> None:
        """Wait until the partner has applied everything that the server has, before an answer.

        `Deposed` if the server has been replaced and must not answer.
        """
        mine = self._noted
        with self._sending:
            if self._sent < mine and self.is_on:
                self._send()

    def follow(self, addresses: Sequence[str]) -> None:
        """Change to a new partner, which first gets all of the server's state."""
        self._addresses = tuple(addresses)
        self.close()  # threads that wait for the old partner stop waiting
        with self._sending:
            self._open(addresses)
            self._send_all()

    def fetch(self, addresses: Sequence[str]) -> None:
        """Take over the partner's copy of this server's state, and follow the partner.

        OSError if it cannot be reached, `RemoteError` if it has none.
        """
        with self._sending:
            link = self._open(addresses)
            head = {"owner": self._server.index, "life": self._life}
            reply = link.call("shadow_state", head)
            server_state.unpack(self._server, reply.buffers)
            self._begin()

    def close(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            with suppress(OSError):
                link.close()

    def _note(self, op: str, head: dict[str, Any], buffers: Sequence[Any]) -> None:
        self._noted += 1
        self._waiting.append((op, head, buffers))

    def _begin(self) -> None:
        with self._server.lock:
            if not self.is_on:
                self._server.observers.append(self._note)
            self._waiting, self._sent, self.is_on = [], self._noted, True

    def _open(self, addresses: Sequence[str]) -> RequestClient:
        self.close()
        self._addresses = tuple(addresses)
        self._link = self._dial(self._addresses)
        return self._link

    def _send_all(self) -> None:
        """Send the whole state; changes applied meanwhile wait."""
        assert self._link is not None
        buffers = server_state.packed(self._server, self._begin)
        head = {"owner": self._server.index, "life": self._life}
        self._link.call("shadow_begin", head, buffers)

    def _send(self) -> None:
        with self._server.lock:
            messages, self._waiting = self._waiting, []
            upto = self._noted
        head = {
            "owner": self._server.index,
            "life": self._life,
            "messages": [[op, head, len(buffers)] for op, head, buffers in messages],
        }
        try:
            assert self._link is not None
            self._link.call("shadow", head, [b for *_, buffers in messages for b in buffers])
        except RemoteError as error:
            if error.kind == "Deposed":
                raise Deposed(self._server.index) from error
            self._again(error)
        except (ConnectionLost, Refused, OSError) as error:
            self._again(error)
        self._sent = upto

    def _again(self, error: Exception) -> None:
        """Reconnect, as only the connection may have broken, and send everything once more."""
        try:
            self._open(self._addresses)
            self._send_all()
        except (ConnectionLost, Refused, RemoteError, OSError):
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        with self._server.lock:
            if self.is_on:
                self._server.observers.remove(self._note)
            self.is_on, self._waiting = False, []
        self.close()
        logger.warning(
            "Parameter server %d goes on without a replica until its partner is back: %r",
            self._server.index,
            error,
        )


@final
class Shadows:
    """The replicas that a server has of others."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._lives: dict[int, str] = {}
        self._shadows: dict[int, ParameterServer] = {}

    def op_shadow_begin(self, message: Any) -> Reply:
        owner = message.head["owner"]
        shadow = ParameterServer(owner, self._settings)
        server_state.unpack(shadow, message.buffers)
        with self._lock:
            self._shadows[owner], self._lives[owner] = shadow, message.head["life"]
        return {}, ()

    def op_shadow(self, message: Any) -> Reply:
        """Apply a change that a server has applied.

        `Deposed` if the sender no longer stands for this server.
        """
        owner = message.head["owner"]
        given = iter(message.buffers)
        with self._lock:
            if owner not in self._shadows:
                raise NoReplica(owner)
            if self._lives[owner] != message.head["life"]:
                raise Deposed(owner)
            for op, head, count in message.head["messages"]:
                buffers = [next(given) for _ in range(count)]
                self._shadows[owner].handle(None, Message(op, head, buffers))
        return {}, ()

    def op_shadow_state(self, message: Any) -> Reply:
        """Give the state of a server to its successor, which alone is heard from now on.

        `NoReplica` if there is none.
        """
        owner = message.head["owner"]
        with self._lock:
            if owner not in self._shadows:
                raise NoReplica(owner)
            self._lives[owner] = message.head["life"]
            return {}, server_state.packed(self._shadows[owner])
