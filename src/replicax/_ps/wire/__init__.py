"""The data path: requests with large arrays, between processes that know a secret.

A `Listener` answers, a `Link` asks. Both can be sure that the other side knows the secret and is
the process that was meant, that a message arrives whole and unchanged or not at all, and that a
connection that ends wakes whoever waits for it. The folder does not know what messages mean.
"""

from __future__ import annotations

from replicax._net import Message, Refused
from replicax._ps.wire._address import at_place
from replicax._ps.wire._errors import LinkLost, RemoteError
from replicax._ps.wire._link import Link
from replicax._ps.wire._listener import Listener, Session

__all__ = [
    "Link",
    "LinkLost",
    "Listener",
    "Message",
    "Refused",
    "RemoteError",
    "Session",
    "at_place",
]
