"""One message as bytes: its layout and its limits. `connection.py` sends and receives it.

    prefix | sizes of the buffers, numbers of segments, JSON | buffers

Each buffer but the last is padded to the alignment, so that one read gets them all.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from replicax._core.errors import UsageError

if TYPE_CHECKING:
    # An object with the buffer protocol, C-contiguous.
    Buffer = np.ndarray[Any, Any] | memoryview | bytes | bytearray

REQUEST, REPLY, FAILURE = range(3)

Reply = tuple[dict[str, Any], Sequence[Any]]
"""The JSON and the buffers of an answer."""

LARGEST_HEAD = 1 << 20  # bytes; the hosts of 4,096 workers have 0.3 MB
MOST_BUFFERS = 1 << 16
LARGEST = 16 << 30
_JOINED = 1 << 14  # bytes of a message that are copied rather than sent in pieces
ALIGNMENT = 64  # JAX's alignment on CPU, with which it uses an array in place

# Magic, kind, the numbers of segments that are new, forgotten and unused; bytes of JSON, number of
# buffers, segment; bytes of all buffers.
_PREFIX = struct.Struct("<4sBBBBIII4xQ")
_MAGIC = b"RXw3"
PREFIX_SIZE = _PREFIX.size
_ZEROS = [bytes(count) for count in range(ALIGNMENT)]

_encode = json.JSONEncoder(separators=(",", ":")).encode
_decode = json.JSONDecoder().decode


class Garbled(Exception):
    """Raised for bytes that are not of this protocol, or exceed its limits."""


class Message(NamedTuple):
    """A message between two ends: an operation, JSON, and raw bytes.

    Buffers of a received message are writable, aligned to 64 bytes, and belong to it alone. They
    are in one piece of memory, which lives as long as one of them.
    """

    op: str
    head: dict[str, Any]
    buffers: Sequence[memoryview] = ()
    kind: int = REQUEST


class Body(NamedTuple):
    """The buffers of a message that will be sent."""

    buffers: Sequence[Buffer]
    sizes: list[int]
    places: list[tuple[int, int]]
    size: int  # of all buffers, with padding


_NO_BODY = Body((), [], [], 0)


class Notes(NamedTuple):
    """The part of a message about shared memory; see `shared_memory.py`."""

    segment: int = 0  # where its buffers are, unless they follow
    new: int = 0  # 1 if the segment's file comes with the message
    forgotten: Sequence[int] = ()
    unused: Sequence[int] = ()


NOTHING = Notes()


class Encoded(NamedTuple):
    """A message that can be sent; its buffers stay where they are."""

    first: bytes  # all before the buffers
    body: Body
    file: int | None = None  # sent with the message, then closed

    @property
    def size(self) -> int:
        """The number of bytes for the socket."""
        return len(self.first) + self.body.size

    @property
    def pieces(self) -> list[Any]:
        """The bytes before the buffers, the buffers, and the padding between them."""
        pieces: list[Any] = [self.first]
        for buffer, size in zip(self.body.buffers, self.body.sizes, strict=True):
            pieces.append(buffer)
            if size % ALIGNMENT:
                pieces.append(_ZEROS[-size % ALIGNMENT])
        if self.body.size % ALIGNMENT:
            pieces.pop()  # nothing follows
        return pieces


class Prefix(NamedTuple):
    """The first bytes of a message, which describe the rest."""

    kind: int
    new: int
    forgotten: int
    unused: int
    head: int
    buffers: int
    segment: int
    body: int

    @property
    def rest(self) -> int:
        """The number of bytes between these and the buffers."""
        return 8 * self.buffers + 4 * (self.forgotten + self.unused) + self.head


def encode(op: str, head: dict[str, Any], buffers: Sequence[Buffer] = ()) -> Encoded:
    """Encode a request without shared memory; other values than JSON raise TypeError or ValueError.

    The same one can be sent to several connections.
    """
    message = encoded(REQUEST, encode_head(op, head, LARGEST_HEAD), lay_out(buffers, LARGEST))
    if message.body.sizes and message.size <= _JOINED:
        return Encoded(b"".join(message.pieces), _NO_BODY)  # once for all connections
    return message


def encoded(
    kind: int, text: bytes, body: Body, notes: Notes = NOTHING, file: int | None = None
) -> Encoded:
    """Put a message together from the JSON of `encode_head` and the buffers of `lay_out`."""
    segment, new, forgotten, unused = notes
    numbers, count = (*forgotten, *unused), len(body.sizes)
    prefix = _PREFIX.pack(
        _MAGIC, kind, new, len(forgotten), len(unused), len(text), count, segment, body.size
    )
    if count or numbers:
        text = struct.pack(f"<{count}Q{len(numbers)}I", *body.sizes, *numbers) + text
    return Encoded(prefix + text, _NO_BODY if segment else body, file)


def decode(message: Encoded) -> Message:
    """The message that arrives when it is sent; the buffers are the same memory."""
    if not message.body.sizes:
        return parse(memoryview(message.first))
    prefix = read_prefix(message.first)
    op, head, _, _ = read_rest(message.first[PREFIX_SIZE:], prefix)
    return Message(op, head, [as_bytes(buffer) for buffer in message.body.buffers], prefix.kind)


def parse(data: memoryview) -> Message:
    """The message of which these are all bytes, such as those of `Encoded.pieces`, joined."""
    prefix = read_prefix(data)
    op, head, notes, places = read_rest(data[PREFIX_SIZE:], prefix)
    if notes is not NOTHING:
        raise Garbled("it refers to memory, and nothing is shared")
    body = data[PREFIX_SIZE + prefix.rest :]
    return Message(op, head, [body[start:end] for start, end in places], prefix.kind)


def lay_out(buffers: Sequence[Buffer], largest: int) -> Body:
    """Measure the buffers, and check that they can be sent."""
    if not buffers:
        return _NO_BODY
    if len(buffers) > MOST_BUFFERS:
        raise UsageError(
            f"A message must have at most {MOST_BUFFERS} buffers, got {len(buffers)}. Send several "
            "messages."
        )
    sizes: list[int] = []
    for buffer in buffers:
        if isinstance(buffer, np.ndarray):  # asked directly: memoryview does not know bfloat16
            contiguous, size = buffer.flags.c_contiguous, buffer.nbytes
        else:
            view = memoryview(buffer)
            contiguous, size = view.c_contiguous, view.nbytes
        if not contiguous:
            raise UsageError("A buffer is not C-contiguous. Use np.ascontiguousarray(array).")
        sizes.append(size)
    places = _places_of(sizes)
    end = places[-1][1]
    if end > largest:
        raise UsageError(
            f"The buffers of a message must have at most {largest} bytes, got {end}. Send several "
            "messages, or raise `largest` on both sides."
        )
    return Body(buffers, sizes, places, end)


def encode_head(op: str, head: dict[str, Any], largest: int) -> bytes:
    """The JSON of a message; other values are a TypeError or a ValueError."""
    text = _encode([op, head]).encode()
    if len(text) > largest:
        raise UsageError(
            f"The head of a message must have at most {largest} bytes of JSON, got {len(text)}. "
            "Send large values as buffers."
        )
    return text


def read_prefix(data: Any, largest: int = LARGEST, largest_head: int = LARGEST_HEAD) -> Prefix:
    """Read the first bytes of a message, before memory is allocated for the rest."""
    magic, *fields = _PREFIX.unpack_from(data)
    prefix = Prefix(*fields)
    if magic != _MAGIC or prefix.kind > FAILURE:
        raise Garbled("it sent bytes that are not a message")
    if prefix.head > largest_head or prefix.buffers > MOST_BUFFERS or prefix.body > largest:
        raise Garbled(
            f"it announced a head of {prefix.head} bytes and {prefix.buffers} buffers of "
            f"{prefix.body} bytes; the limits are {largest_head}, {MOST_BUFFERS} and {largest}"
        )
    return prefix


def read_rest(
    data: Any, prefix: Prefix
) -> tuple[str, dict[str, Any], Notes, list[tuple[int, int]]]:
    """Read the bytes between these and the buffers: also the start and end of each buffer."""
    notes = NOTHING
    if prefix.segment or prefix.new or prefix.forgotten or prefix.unused:
        count, start = prefix.forgotten + prefix.unused, 8 * prefix.buffers
        numbers = struct.unpack_from(f"<{count}I", data, start)
        forgotten, unused = numbers[: prefix.forgotten], numbers[prefix.forgotten :]
        notes = Notes(prefix.segment, prefix.new, forgotten, unused)
    try:
        start = prefix.rest - prefix.head
        op, head = _decode(str(data[start : prefix.rest], "utf-8"))
    except (ValueError, TypeError, RecursionError):
        raise Garbled("it sent a head that is not a JSON list of two parts") from None
    if not (isinstance(op, str) and isinstance(head, dict)):
        raise Garbled("it sent a head that is not a text and an object")
    places, end = [], 0
    if prefix.buffers:
        places = _places_of(struct.unpack_from(f"<{prefix.buffers}Q", data))
        end = places[-1][1]
    if end != prefix.body:
        raise Garbled(f"it announced {prefix.body} bytes of buffers, and then {end}")
    return op, head, notes, places


def empty(size: int) -> memoryview:
    """Allocate aligned memory. NumPy takes large pieces in huge pages, and none is touched yet."""
    if not size:
        return memoryview(bytearray())
    block = np.empty(size + ALIGNMENT, np.uint8)
    start = -block.__array_interface__["data"][0] % ALIGNMENT
    return block.data[start : start + size]


def as_bytes(buffer: Buffer) -> memoryview:
    """The bytes of a buffer, whatever its type."""
    if isinstance(buffer, bytes):  # at a tenth of the time
        return memoryview(buffer)
    return np.frombuffer(buffer, np.uint8).data


def raw(value: Any) -> np.ndarray:
    """The bytes of an array, even of types such as bfloat16 that have no buffer protocol."""
    return np.ascontiguousarray(value).reshape(-1).view(np.uint8)


def array_of(buffer: Any, dtype: Any, shape: Sequence[int]) -> np.ndarray:
    """The array that some bytes are."""
    return np.frombuffer(buffer, dtype=np.uint8).view(np.dtype(dtype)).reshape(shape)


def numbers_of(buffer: Any) -> np.ndarray:
    """Row numbers."""
    return np.frombuffer(buffer, dtype=np.int64)


def _places_of(sizes: Sequence[int]) -> list[tuple[int, int]]:
    places, end = [], 0
    for size in sizes:
        start = -(-end // ALIGNMENT) * ALIGNMENT
        end = start + size
        places.append((start, end))
    return places
