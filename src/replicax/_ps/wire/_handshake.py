"""How two ends find out that both know the secret, before one byte of what the other says is read.

    client                                server
      | -- magic, nonce of the client ------> |
      | <------------- nonce of the server -- |
      | -- HMAC(secret, client, nonces) ----> |   a stranger gets no further, and learns nothing
      | <-- yes, HMAC(secret, server, nonces) |   an impostor gets no further

All parts have a fixed, small size, and nonces are fresh, so nothing can be replayed. It says who is
there; it does not encrypt, nor stop somebody who can change what travels between the two: for
networks that are not trusted, there is TLS, and the handshake happens inside of it.
"""

from __future__ import annotations

import hmac
import os
import time
from typing import TYPE_CHECKING

from replicax._core.errors import UsageError
from replicax._ps.wire._errors import Refused

if TYPE_CHECKING:
    import socket

PATIENCE = 5.0  # seconds
_MAGIC = b"RXwire01"
_NONCE = 32
_PROOF = 32
_YES, _YES_SHARED, _NO = b"y", b"Y", b"n"
_SHORTEST = 16
_FIX = (
    "Give both the same secret; if a program of an earlier start still listens there, end it, and "
    "if it is of another version of Replicax, install the same."
)


class Stranger(Exception):
    """The client does not know the secret; says what it did."""


def check_secret(secret: bytes) -> None:
    """Refuse a secret that can be guessed: who knows it can run code in this process."""
    if len(secret) < _SHORTEST:
        raise UsageError(
            f"A secret must have at least {_SHORTEST} bytes. Received: {len(secret)}. Who guesses "
            "it controls the cluster. Use secrets.token_bytes(32)."
        )


def introduce(sock: socket.socket, secret: bytes, peer: str, deadline: float) -> bool:
    """The client's part. Returns whether large buffers go through shared memory."""
    ours = os.urandom(_NONCE)
    _send(sock, _MAGIC + ours, deadline)
    theirs = _receive(sock, _NONCE, deadline)
    _send(sock, _proof(secret, b"client", ours, theirs), deadline)
    answer = _receive(sock, 1 + _PROOF, deadline)
    if answer[:1] == _NO:
        raise Refused(
            "Both sides of a connection must know the same secret. Received: another secret than "
            f"that of {peer}, which refused this process. It would otherwise obey anybody. {_FIX}"
        )
    if not hmac.compare_digest(answer[1:], _proof(secret, b"server", ours, theirs)):
        raise Refused(
            f"A server must prove that it knows the secret. Received: no proof from {peer}. It may "
            f"be another program that pretends to be the server; nothing was sent to it. {_FIX}"
        )
    return answer[:1] == _YES_SHARED


def examine(sock: socket.socket, secret: bytes, shared: bool, deadline: float) -> None:
    """The server's part. Raises `Stranger`, or an OSError or EOFError if nobody is there."""
    if _receive(sock, len(_MAGIC), deadline) != _MAGIC:
        raise Stranger("it does not speak the protocol")
    theirs = _receive(sock, _NONCE, deadline)
    ours = os.urandom(_NONCE)
    _send(sock, ours, deadline)
    if not hmac.compare_digest(
        _receive(sock, _PROOF, deadline), _proof(secret, b"client", theirs, ours)
    ):
        _send(sock, _NO + bytes(_PROOF), deadline)
        raise Stranger("it does not know the secret")
    yes = _YES_SHARED if shared else _YES
    _send(sock, yes + _proof(secret, b"server", theirs, ours), deadline)


def wait_until(sock: socket.socket, deadline: float) -> None:
    """Let the next call on the socket wait no longer than this."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    sock.settimeout(left)


def _proof(secret: bytes, role: bytes, client: bytes, server: bytes) -> bytes:
    return hmac.digest(secret, role + client + server, "sha256")


def _send(sock: socket.socket, data: bytes, deadline: float) -> None:
    wait_until(sock, deadline)
    sock.sendall(data)


def _receive(sock: socket.socket, size: int, deadline: float) -> bytes:
    data = b""
    while len(data) < size:
        wait_until(sock, deadline)
        more = sock.recv(size - len(data))
        if not more:
            raise EOFError
        data += more
    return data
