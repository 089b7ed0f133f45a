"""Memory that two processes of one host share: large buffers are written once, and not sent.

Each end writes into its own segments, anonymous files, and passes each to the other end once, over
their Unix socket. The other end uses a message in place; when nothing there refers to it any more,
its next message says so, and the segment is reused. Nothing has a name: when both processes are
gone, however they ended, so is the memory.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from replicax._net.frames import Body, Garbled

try:
    import fcntl
except ImportError:  # missing on systems without such memory
    fcntl = None

SMALLEST = 1 << 16  # bytes; for fewer, a socket is as fast
_SEGMENTS = 4  # segments of one end of a connection: one on its way, others in use there
_MOST = 256 << 20  # bytes in all segments, which are kept between messages
_PATIENCE = 64  # messages after which a segment still in use is left to the other end
_STEP = 1 << 16  # sizes are rounded up to this

# So that nobody can shrink memory that the other end reads, which would kill it.
_F_ADD_SEALS, _F_GET_SEALS = 1033, 1034
_SHRINK, _GROW, _SEAL = 2, 4, 1
_FIXED = _SHRINK | _GROW | _SEAL


def can_share() -> bool:
    return fcntl is not None and hasattr(os, "memfd_create")


@dataclass
class _Segment:
    memory: np.ndarray[Any, Any]
    lent: int  # the number of the message that is in it, or 0

    @property
    def size(self) -> int:
        return len(self.memory)


@final
class Outgoing:
    """The segments that this end writes."""

    def __init__(self) -> None:
        self._segments: dict[int, _Segment] = {}
        self._messages = 0
        self._made = 0
        self._forgotten: list[int] = []

    def write(self, body: Body) -> tuple[int, int | None] | None:
        """Copy buffers into a segment; return its number and, if it is new, its file to close."""
        self._messages += 1
        self._leave()
        free = [number for number, segment in self._segments.items() if not segment.lent]
        fitting = [number for number in free if self._segments[number].size >= body.size]
        number = min(fitting, key=lambda number: self._segments[number].size, default=0)
        file = None
        if not number:
            made = self._make(body.size, free)
            if made is None:
                return None
            number, file = made
        segment = self._segments[number]
        segment.lent = self._messages
        for buffer, (start, end) in zip(body.buffers, body.places, strict=True):
            if end > start:
                np.copyto(segment.memory[start:end], np.frombuffer(buffer, np.uint8))
        return number, file

    def given_back(self, numbers: Sequence[int]) -> None:
        """Note that the other end no longer uses these."""
        for number in numbers:
            if number in self._segments:
                self._segments[number].lent = 0

    def forgotten(self) -> list[int]:
        """The segments dropped since the last call, which the other end has to drop, too."""
        numbers, self._forgotten = self._forgotten, []
        return numbers

    def _make(self, size: int, free: list[int]) -> tuple[int, int] | None:
        """Make a segment, in place of one that is too small if there are too many."""
        size = -(-size // _STEP) * _STEP
        kept = sum(segment.size for segment in self._segments.values())
        for number in sorted(free, key=lambda number: self._segments[number].size):
            if len(self._segments) < _SEGMENTS and kept + size <= _MOST:
                break
            kept -= self._segments[number].size
            self._drop(number)
        if len(self._segments) >= _SEGMENTS or kept + size > _MOST:
            return None
        try:
            file, memory = _allocate(size)
        except OSError:  # no memory, or not permitted: the socket suffices
            return None
        self._made += 1
        self._segments[self._made] = _Segment(memory, 0)
        return self._made, file

    def _leave(self) -> None:
        """Leave segments that have been in use for long to the other end."""
        for number, segment in list(self._segments.items()):
            if segment.lent and self._messages - segment.lent > _PATIENCE:
                self._drop(number)

    def _drop(self, number: int) -> None:
        del self._segments[number]
        self._forgotten.append(number)


@final
class Incoming:
    """The segments that the other end writes."""

    def __init__(self) -> None:
        self._segments: dict[int, mmap.mmap] = {}
        self._lent: dict[int, weakref.ref[Any]] = {}
        self._unused: deque[int] = deque()

    def add(self, number: int, file: int) -> None:
        """Take a segment; the file is not needed afterwards."""
        assert fcntl is not None
        if len(self._segments) >= 2 * _SEGMENTS:
            raise Garbled("it shares more memory than agreed")
        try:
            sealed = fcntl.fcntl(file, _F_GET_SEALS) & _SHRINK
            size = os.fstat(file).st_size
            if not sealed or not 0 < size <= _MOST:
                raise Garbled("it shares memory that it could take away")
            self._segments[number] = mmap.mmap(file, size)
        except OSError as error:
            raise Garbled(f"it shares memory that cannot be used: {error}") from None

    def read(self, number: int, size: int) -> memoryview:
        """The contents of a segment, which is in use until nothing refers to them any more."""
        memory = self._segments.get(number)
        if memory is None or size > len(memory) or number in self._lent:
            raise Garbled("it refers to memory that it does not share")
        whole = np.frombuffer(memory, np.uint8, size)
        unused = self._unused
        # Everything made of it refers to this array: NumPy skips views in between, but not the
        # last array before memory that is not its own.
        self._lent[number] = weakref.ref(whole, lambda _: unused.append(number))
        return whole.data

    def unused(self) -> list[int]:
        """The segments that are no longer in use, since the last call."""
        numbers: list[int] = []
        while self._unused:  # other threads may add to it meanwhile, but not take
            numbers.append(self._unused.popleft())
            del self._lent[numbers[-1]]
        return numbers

    def forget(self, numbers: Sequence[int]) -> None:
        """Drop segments that the other end has dropped; those in use stay until they are not."""
        for number in numbers:
            self._segments.pop(number, None)


def _allocate(size: int) -> tuple[int, np.ndarray[Any, Any]]:
    """Make shareable memory; return its file and itself."""
    assert fcntl is not None
    file = os.memfd_create("replicax", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.posix_fallocate(file, 0, size)  # now, when a lack of memory is an error and no signal
        fcntl.fcntl(file, _F_ADD_SEALS, _FIXED)
        return file, np.frombuffer(mmap.mmap(file, size), np.uint8)
    except OSError:
        os.close(file)
        raise
