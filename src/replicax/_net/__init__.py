"""Authenticated connections between the processes of a cluster, with sealed messages.

A `Listener` listens only on the interface of the cluster's address. The handshake makes a
`Session`, which seals every message. `_control` (the workers' channel) and `_ps` (the parameter
servers) use the connections. Only the standard library and NumPy are imported.
"""

from __future__ import annotations

from replicax._net.address import at_place
from replicax._net.client import ConnectionLost, RemoteError, RequestClient
from replicax._net.connection import BROKEN, Connection, Outbox, reason_of
from replicax._net.frames import (
    FAILURE,
    LARGEST,
    REPLY,
    REQUEST,
    Encoded,
    Garbled,
    Message,
    decode,
    encode,
    parse,
)
from replicax._net.handshake import (
    PATIENCE,
    Caller,
    Denied,
    Refused,
    Stranger,
    check_secret,
    in_cluster,
    introduce,
    printable,
    wait_until,
)
from replicax._net.interfaces import check_host, interface_of, is_loopback
from replicax._net.listener import Accepted, Listener
from replicax._net.relay import Relay
from replicax._net.secret import HOW_TO, Secret, given_secret, secret_of_this_machine
from replicax._net.server import RequestServer
from replicax._net.session import Forged, Seal, Session
from replicax._net.shared_memory import can_share
from replicax._net.sockets import hang_up, own, tries, tune

__all__ = [
    "RequestServer",
    "RequestClient",
    "RemoteError",
    "ConnectionLost",
    "at_place",
    "HOW_TO",
    "BROKEN",
    "FAILURE",
    "LARGEST",
    "PATIENCE",
    "REPLY",
    "REQUEST",
    "Accepted",
    "Caller",
    "Connection",
    "Denied",
    "Encoded",
    "Forged",
    "Garbled",
    "Listener",
    "Message",
    "Outbox",
    "Refused",
    "Relay",
    "Seal",
    "Secret",
    "Session",
    "Stranger",
    "can_share",
    "check_host",
    "check_secret",
    "decode",
    "encode",
    "given_secret",
    "hang_up",
    "in_cluster",
    "interface_of",
    "introduce",
    "is_loopback",
    "own",
    "parse",
    "printable",
    "reason_of",
    "secret_of_this_machine",
    "tries",
    "tune",
    "wait_until",
]
