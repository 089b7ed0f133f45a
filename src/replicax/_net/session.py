"""The result of a handshake: a key for each direction, which seals every message.

A seal is HMAC-SHA256 over a counter and the bytes. So a message that was changed, dropped,
repeated, reordered or reflected is detected before it is read. Messages are not encrypted.
SHA-256 was chosen by measurement: with the instructions that CPUs have for it 1.4 GB/s and 3 µs for
a small message; keyed BLAKE2b has 0.5 GB/s.
"""

from __future__ import annotations

import hmac
import itertools
from typing import TYPE_CHECKING, NamedTuple, final

if TYPE_CHECKING:
    Buffer = bytes | bytearray | memoryview

TAG_SIZE = 32
_COUNTER = 8  # bytes


class Forged(ConnectionError):
    """A received message differs from the message that the other end sent."""


@final
class Seal:
    """Seals the messages of one direction, with a key of its own; one thread at a time."""

    def __init__(self, key: bytes) -> None:
        self._keyed = hmac.new(key, digestmod="sha256")
        self._numbers = itertools.count()

    def begin(self) -> hmac.HMAC:
        """Begin the seal of what comes next; its bytes are given to `update`, in pieces."""
        mac = self._keyed.copy()
        mac.update(next(self._numbers).to_bytes(_COUNTER))
        return mac

    def tag(self, *pieces: Buffer) -> bytes:
        """The seal of what is sent next."""
        mac = self.begin()
        for piece in pieces:
            mac.update(piece)
        return mac.digest()

    def check(self, tag: Buffer, *pieces: Buffer) -> None:
        """Check the seal of what was received next; `Forged` if it is another's."""
        mac = self.begin()
        for piece in pieces:
            mac.update(piece)
        self.conclude(mac, tag)

    @staticmethod
    def conclude(mac: hmac.HMAC, tag: Buffer) -> None:
        """Check the seal of what `mac` was given; `Forged` if it is another's."""
        if not hmac.compare_digest(mac.digest(), bytes(tag)):
            raise Forged("a message whose seal does not fit: it was changed on its way")


class Session(NamedTuple):
    """The two directions of a connection, as one end sees them."""

    outgoing: Seal
    incoming: Seal
