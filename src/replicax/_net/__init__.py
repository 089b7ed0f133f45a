"""Connections between processes of a cluster: who may connect, and that nobody changes messages.

A `Listener` listens, on no more than the address that the cluster names; a `Session` comes of the
handshake and seals every message. What is said over a connection is the business of `_control`,
the workers' channel, and of `_ps`, the parameter servers. The standard library only.
"""

from __future__ import annotations

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
from replicax._net.listener import Connection, Listener
from replicax._net.relay import Relay
from replicax._net.secret import HOW_TO, Secret, given_secret, secret_of_this_machine
from replicax._net.session import TAG_SIZE, Forged, Seal, Session
from replicax._net.sockets import hang_up, own, tune

__all__ = [
    "HOW_TO",
    "TAG_SIZE",
    "PATIENCE",
    "Caller",
    "Connection",
    "Denied",
    "Listener",
    "Forged",
    "Refused",
    "Relay",
    "Seal",
    "Secret",
    "Session",
    "Stranger",
    "check_host",
    "check_secret",
    "given_secret",
    "hang_up",
    "in_cluster",
    "interface_of",
    "introduce",
    "is_loopback",
    "own",
    "printable",
    "secret_of_this_machine",
    "tune",
    "wait_until",
]
