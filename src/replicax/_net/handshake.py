"""The handshake, in which both ends authenticate each other before any data is trusted.

    client                                      server
      | -- magic, kind, nonce -------------------> |
      | <------------------------- kind, nonce --- |
      | -- proof, who I am and whom I want ------> |   a stranger gets no further
      | <-- yes or why not, proof, its answer ---- |   an impostor gets no further

Proofs and keys are HMACs, by the secret, of all messages before, with both nonces, and with
the places of both ends in the cluster. A place names its cluster, too: several may have one secret.
So a proof is good for one connection between those two, and an impostor that passes messages on
between a client and another member, or a member of another cluster, is refused by that member; one
that passes them on to the member that is meant knows no key. Whatever has no fixed size is small,
and is not read before its proof is checked.

The kind says whether an end has a secret. Where the cluster has none, all runs with a key that
everybody knows: mistakes are still noticed, strangers are not.

The result is a key for each direction, which seals every message: HMAC-SHA256 over a counter and
the bytes. So a message that was changed, dropped, repeated, reordered or reflected is detected
before it is read. Messages are not encrypted. SHA-256 was chosen by measurement: with the
instructions that CPUs have for it 1.4 GB/s, and 3 µs for a small message; keyed BLAKE2b has 0.5.
"""

from __future__ import annotations

import hmac
import itertools
import json
import os
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any, NamedTuple, cast, final

from replicax._core.errors import ClusterError, UsageError

if TYPE_CHECKING:
    import socket
    from hashlib import _Hash as Hash

    from replicax._net.secret import Secret

    Buffer = bytes | bytearray | memoryview


TAG_SIZE = 32
_COUNTER = 8  # bytes
_BLOCK = 64  # bytes of SHA-256; a key is no longer


class Forged(ConnectionError):
    """A received message differs from the message that the other end sent."""


@final
class Seal:
    """Seals the messages of one direction, with a key of its own; one thread at a time.

    HMAC-SHA256 by its definition (RFC 2104): `hmac` takes twice as long for a small message.
    """

    def __init__(self, key: bytes) -> None:
        block = int.from_bytes(key.ljust(_BLOCK, b"\0"))
        self._inner, self._outer = (
            sha256((block ^ int.from_bytes(bytes([pad]) * _BLOCK)).to_bytes(_BLOCK))
            for pad in (0x36, 0x5C)
        )
        self._numbers = itertools.count()

    def begin(self) -> Hash:
        """Begin the seal of what comes next; its bytes are given to `update`, in pieces."""
        mac = self._inner.copy()
        mac.update(next(self._numbers).to_bytes(_COUNTER))
        return mac

    def tag(self, *pieces: Buffer) -> bytes:
        """The seal of what is sent next."""
        mac = self.begin()
        for piece in pieces:
            mac.update(piece)
        return self._end(mac)

    def check(self, tag: Buffer, *pieces: Buffer) -> None:
        """Check the seal of what was received next; `Forged` if it is another's."""
        mac = self.begin()
        for piece in pieces:
            mac.update(piece)
        self.conclude(mac, tag)

    def conclude(self, mac: Hash, tag: Buffer) -> None:
        """Check the seal of what `mac` was given; `Forged` if it is another's."""
        if not hmac.compare_digest(self._end(mac), tag):
            raise Forged("a message whose seal does not fit: it was changed on its way")

    def _end(self, mac: Hash) -> bytes:
        outer = self._outer.copy()
        outer.update(mac.digest())
        return outer.digest()


class Session(NamedTuple):
    """The two directions of a connection, as one end sees them."""

    outgoing: Seal
    incoming: Seal


PATIENCE = 5.0  # seconds
LARGEST = 4096  # bytes of JSON that either end says of itself
_MAGIC = b"RXnet002"
_NONCE, _PROOF = 32, 32
_WITH_SECRET, _OPEN = b"s", b"o"
_OPEN_KEY = b"replicax: a cluster without a secret"
_YES, _DENIED, _WRONG_SECRET = b"y", b"d", b"n"
_LENGTH = struct.Struct("!H")
_SHORTEST = 16
_LONGEST_REASON = 1024
_SHOWN_PLACE, _SHOWN_CLUSTER = 80, 240  # characters
_CLUSTER = "#"  # stands between a place and the name of its cluster


class Refused(ClusterError, ConnectionError):
    """Raised where one connects, when one side is not who the other one takes it for."""


class Stranger(Exception):
    """The client does not belong to this cluster; the text says why."""


class Denied(Exception):
    """Raised by a server's `admit` to refuse a client, with the reason."""


@final
@dataclass
class Caller:
    """A client that has connected, as the server sees it."""

    place: str  # its place in the cluster, which its keys prove if there is a secret
    hello: dict[str, Any]  # JSON about itself
    peer: str  # its address
    is_local: bool = False  # whether it came by a Unix socket that only this user can reach
    state: dict[str, Any] = field(default_factory=dict, repr=False)  # for the server's own code


def in_cluster(place: str, cluster: str) -> str:
    """A place together with the name of its cluster, if the cluster has one."""
    return f"{place}{_CLUSTER}{cluster}" if cluster else place


def check_secret(secret: bytes) -> None:
    """Refuse a secret that can be guessed: with it, anybody can run code in this process."""
    if len(secret) < _SHORTEST:
        raise UsageError(
            f"The cluster's secret must have at least {_SHORTEST} bytes, got {len(secret)}. Use "
            "secrets.token_hex(32)."
        )


def introduce(
    sock: socket.socket,
    secret: Secret | None,
    *,
    place: str,
    wanted: str,
    hello: dict[str, Any],
    peer: str,
    deadline: float,
) -> tuple[Session, dict[str, Any]]:
    """The client's side of the handshake; returns the session and the server's JSON.

    `place` is this process' place in the cluster, `wanted` the place that the other end must have,
    `hello` JSON about this process. `peer` names the other end in messages. The `deadline` is by
    `time.monotonic`.

    Raises `Refused` if one side does not trust the other, OSError if there is no answer in time,
    and EOFError if the other end hangs up.
    """
    kind, key = _kind_and_key(secret)
    first = _MAGIC + kind + os.urandom(_NONCE)
    _send(sock, first, deadline)
    second = _receive(sock, len(kind) + _NONCE, deadline)
    if second[:1] not in (_WITH_SECRET, _OPEN):
        raise Refused(
            f"Cannot join the cluster because another program answers at {peer}. End it, or "
            "give the chief another address. See docs/clusters.md."
        )
    if second[:1] != kind:
        ours = (
            f"a secret here, of {secret.source}, and none" if secret else "no secret here, and one"
        )
        raise Refused(
            f"Only one side of the connection has a secret: {ours} at {peer}. {_fix(secret)}"
        )
    keys = _Keys(key, first + second)
    intent = _encode({"place": place, "wanted": wanted, "hello": hello})
    _send(sock, _LENGTH.pack(len(intent)) + keys.proof("client", intent) + intent, deadline)
    begin = _receive(sock, 1 + _LENGTH.size + _PROOF, deadline)
    answer, size, proof = begin[:1], begin[1:3], begin[3:]
    if answer == _WRONG_SECRET:
        raise Refused(f"{peer} refused this process because it has another secret. {_fix(secret)}")
    payload = _receive(sock, min(*_LENGTH.unpack(size), LARGEST), deadline)
    if not hmac.compare_digest(proof, keys.proof("server", intent, answer, payload)):
        raise Refused(
            f"{peer} has not proved that it knows the secret, and may be another program. Nothing "
            f"was sent to it. {_fix(secret)}"
        )
    content = _decode(payload) or {}
    if answer != _YES:
        reason = printable(content.get("reason"))
        raise Refused(f"{peer} refused this process: {reason}")
    return keys.session(intent, is_client=True), content


def examine(
    sock: socket.socket,
    secret: Secret | None,
    caller: Caller,
    *,
    place: str,
    admit: Callable[[Caller], dict[str, Any]],
    deadline: float,
) -> Session:
    """The server's side of the handshake; fills in `caller`, and returns the session.

    `admit` is called with the authenticated caller, and returns JSON for it. The `deadline` is by
    `time.monotonic`.

    Raises `Stranger` if the client does not belong to this cluster or is refused, OSError if there
    is no answer in time, and EOFError if the other end hangs up.
    """
    kind, key = _kind_and_key(secret)
    if _receive(sock, len(_MAGIC), deadline) != _MAGIC:
        raise Stranger("it does not speak the protocol")
    first = _MAGIC + _receive(sock, len(kind) + _NONCE, deadline)
    second = kind + os.urandom(_NONCE)
    _send(sock, second, deadline)
    if first[len(_MAGIC) : -_NONCE] != kind:
        raise Stranger("it has no secret" if secret else "it has a secret, and there is none here")
    keys = _Keys(key, first + second)
    begin = _receive(sock, _LENGTH.size + _PROOF, deadline)
    (size,) = _LENGTH.unpack(begin[: _LENGTH.size])
    if size > LARGEST:
        raise Stranger(f"it announced {size} bytes about itself; the limit is {LARGEST}")
    intent = _receive(sock, size, deadline)
    if not hmac.compare_digest(begin[_LENGTH.size :], keys.proof("client", intent)):
        _send(sock, _WRONG_SECRET + bytes(_LENGTH.size + _PROOF), deadline)
        raise Stranger("it does not know the secret")
    answer, content, denied = _YES, {}, ""
    try:
        content = _judge(intent, caller, place, admit)
    except Denied as error:
        denied = str(error)
        answer, content = _DENIED, {"reason": _fitting(denied)}
    payload = _encode(content)
    proof = keys.proof("server", intent, answer, payload)
    _send(sock, answer + _LENGTH.pack(len(payload)) + proof + payload, deadline)
    if denied:
        raise Stranger(denied)
    return keys.session(intent, is_client=False)


def wait_until(sock: socket.socket, deadline: float) -> None:
    """Limit the next call on the socket to the deadline."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    sock.settimeout(left)


@final
class _Keys:
    """The keys that both ends derive from the secret and the messages of the handshake."""

    def __init__(self, secret: bytes, transcript: bytes) -> None:
        self._transcript = transcript
        self._key = hmac.digest(secret, transcript, "sha256")

    def proof(self, role: str, *messages: bytes) -> bytes:
        return self._derive(f"{role} proves", *messages)

    def session(self, intent: bytes, *, is_client: bool) -> Session:
        to_server = Seal(self._derive("client to server", intent))
        to_client = Seal(self._derive("server to client", intent))
        return Session(to_server, to_client) if is_client else Session(to_client, to_server)

    def _derive(self, label: str, *messages: bytes) -> bytes:
        digests = b"".join(
            sha256(part).digest() for part in (self._transcript, label.encode(), *messages)
        )
        return hmac.digest(self._key, digests, "sha256")


def _judge(
    intent: bytes, caller: Caller, place: str, admit: Callable[[Caller], dict[str, Any]]
) -> dict[str, Any]:
    introduction = _decode(intent) or {}
    hello, wanted = introduction.get("hello"), introduction.get("wanted")
    if not isinstance(hello, dict):
        raise Stranger("it said nothing about itself")
    caller.place = printable(introduction.get("place"))
    caller.hello = cast("dict[str, Any]", hello)
    if wanted != place:
        raise _misplaced(str(wanted or ""), place)
    return admit(caller)


def _misplaced(wanted: str, here: str) -> Denied:
    """The refusal of a client that looks for another process or another cluster."""
    (wanted, _, theirs), (here, _, ours) = wanted.partition(_CLUSTER), here.partition(_CLUSTER)
    wanted = printable(wanted or "a process of any place", _SHOWN_PLACE)
    if theirs == ours:
        return Denied(
            f"{wanted} was looked for, and {here or 'none'} is here. Let all processes have the "
            "same description of the cluster; if it is right, somebody else listens at that "
            "address, and passes connections on."
        )
    theirs = printable(theirs or "without a name", _SHOWN_CLUSTER)
    return Denied(
        f"{wanted} of cluster {theirs} was looked for, and {here or 'none'} of cluster "
        f"{ours or 'without a name'} is here: it belongs to another job. Compare the addresses of "
        "both: all processes of a job have the same ones, in the same order. If they are right, "
        "something listens at the address that was looked for, and passes connections on."
    )


def _fitting(reason: str) -> str:
    """Shorten a reason to the length that a client reads; it may contain the client's own text."""
    reason = reason[:_LONGEST_REASON]
    # JSON has up to 12 bytes for each character that is not ASCII.
    is_long = len(json.dumps(reason)) > LARGEST // 2
    return reason.encode("ascii", "replace").decode() if is_long else reason


def printable(text: object, longest: int = _LONGEST_REASON) -> str:
    """Text of a peer for a log or a terminal, without line breaks and escape codes."""
    return "".join(each for each in str(text)[:longest] if each.isprintable())


def _kind_and_key(secret: Secret | None) -> tuple[bytes, bytes]:
    return (_WITH_SECRET, secret.value) if secret else (_OPEN, _OPEN_KEY)


def _fix(secret: Secret | None) -> str:
    own = f" (this process has the secret of {secret.source})" if secret else ""
    return (
        f"Give both the same secret{own}; if a program of an earlier start still listens there, "
        "end it, and if it is of another version of Replicax, install the same."
    )


def _encode(content: dict[str, Any]) -> bytes:
    text = json.dumps(content, separators=(",", ":")).encode()
    if len(text) > LARGEST:
        raise UsageError(
            f"`hello` must have at most {LARGEST} bytes of JSON, got {len(text)}. Send the rest "
            "after the connection stands."
        )
    return text


def _decode(text: bytes) -> dict[str, Any] | None:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, Any]", content) if isinstance(content, dict) else None


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
