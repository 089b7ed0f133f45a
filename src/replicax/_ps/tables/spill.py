"""Rows of which only so many are in memory: the others lie in files, as they were used longest ago.

A file has no name, so that it goes with its process, however that ends. It is no snapshot: those
are made by `Table.export`, of all rows.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from typing import final

import numpy as np

from replicax._core.errors import UsageError
from replicax._ps.tables.row_store import Column, put_rows, take_rows

# So many of the frames are emptied at once, so that choosing them is not done for every call.
_EMPTIED_AT_ONCE = 16
_ABSENT, _EMPTY = -1, -1


@final
class SpilledRows:
    """Rows with a bound on those in memory.

    What is read or written comes into memory, into one of `resident_rows` frames, whose row is the
    one not used for longest. A call that names more rows than there are frames reads and writes
    the others in the file.

    Args:
        values: The first column.
        rows: How many rows there are.
        resident_rows: How many of them are in memory at most.
        directory: Where the files are; None for the system's temporary directory.

    Raises:
        UsageError: If no row may be in memory.
    """

    def __init__(
        self, values: Column, rows: int, resident_rows: int, directory: str | None = None
    ) -> None:
        if resident_rows < 1:
            raise UsageError(
                f"`resident_rows` must be positive. Received: {resident_rows}. A row is in memory "
                "while it is used. Give the number that fits, or None to keep all in memory."
            )
        self.rows = rows
        self._directory = directory
        self._frame_of = np.full(rows, _ABSENT, np.int32)
        self._row_in = np.full(resident_rows, _EMPTY, np.int64)
        self._last_use = np.zeros(resident_rows, np.int64)
        self._changed = np.zeros(resident_rows, bool)
        self._free = np.arange(resident_rows)[::-1]
        self._clock = 0
        self._frames: list[np.ndarray] = []
        self._files: list[_ColumnFile] = []
        self.add_column(values)

    def add_column(self, column: Column) -> None:
        """Add a column of zeros."""
        self._frames.append(np.zeros((len(self._row_in), *column.shape), column.dtype))
        self._files.append(_ColumnFile(column, self.rows, self._directory))

    def drop_columns(self, kept: int) -> None:
        """Drop all columns but the first."""
        for file in self._files[kept:]:
            file.close()
        del self._files[kept:], self._frames[kept:]

    def read(self, number: int, rows: np.ndarray, room: int = 0) -> np.ndarray:
        """Copy rows of a column; zeros behind them if there is `room` for more."""
        frames = self._bring_in(rows)
        out = take_rows(self._frames[number], frames, room)
        outside = np.flatnonzero(frames == _ABSENT)
        if len(outside):
            out[outside] = self._files[number].read(rows[outside])
        return out

    def write(self, number: int, rows: np.ndarray, values: np.ndarray) -> None:
        """Write rows of a column, each once."""
        frames = self._bring_in(rows)
        inside = frames != _ABSENT
        if not inside.all():
            self._files[number].write(rows[~inside], values[~inside])
            frames, values = frames[inside], values[inside]
        put_rows(self._frames[number], frames, values)
        self._changed[frames] = True

    def grow(self, rows: int) -> None:
        """Have room for more rows."""
        if rows > self.rows:
            for file in self._files:
                file.grow(rows)
            more = np.full(rows - self.rows, _ABSENT, np.int32)
            self._frame_of = np.concatenate([self._frame_of, more])
            self.rows = rows

    def close(self) -> None:
        """Close the files, with which they are gone."""
        self.drop_columns(0)

    def _bring_in(self, rows: np.ndarray) -> np.ndarray:
        """Bring rows into memory, as many as there is room for; returns the frame of each."""
        frames = self._frame_of[rows]
        missing = frames == _ABSENT
        self._clock += 1
        self._last_use[frames[~missing]] = self._clock
        if not missing.any():
            return frames
        absent = np.unique(rows[missing])
        in_use = np.count_nonzero(self._last_use == self._clock)
        absent = absent[: len(self._row_in) - in_use]
        self._empty_frames(len(absent))
        self._free, taken = np.split(self._free, [len(self._free) - len(absent)])
        for frames_of_column, file in zip(self._frames, self._files, strict=True):
            put_rows(frames_of_column, taken, file.read(absent))
        self._row_in[taken], self._frame_of[absent] = absent, taken
        self._last_use[taken], self._changed[taken] = self._clock, False
        return self._frame_of[rows]

    def _empty_frames(self, count: int) -> None:
        """See to it that so many frames are free, by writing back what others hold."""
        if count <= len(self._free):
            return
        # Those of this call have the time of now, and are not among the candidates.
        held = np.flatnonzero((self._row_in != _EMPTY) & (self._last_use < self._clock))
        count = max(count - len(self._free), len(self._row_in) // _EMPTIED_AT_ONCE)
        if count < len(held):
            held = held[np.argpartition(self._last_use[held], count - 1)[:count]]
        changed = held[self._changed[held]]
        changed = changed[np.argsort(self._row_in[changed])]  # a file is written in its order
        for frames, file in zip(self._frames, self._files, strict=True):
            file.write(self._row_in[changed], frames[changed])
            file.forget()
        self._frame_of[self._row_in[held]] = _ABSENT
        self._row_in[held] = _EMPTY
        self._free = np.concatenate([self._free, held])


@final
class _ColumnFile:
    """All rows of one column, in a file that is mapped into memory."""

    def __init__(self, column: Column, rows: int, directory: str | None) -> None:
        self._column = column
        self._file = tempfile.TemporaryFile(dir=directory)  # noqa: SIM115  open as long as the table
        weakref.finalize(self, self._file.close)  # of a table that nobody closed
        self._size = 0
        self._map: mmap.mmap | None = None
        self._array = np.empty((0, *column.shape), column.dtype)
        self.grow(rows)

    def read(self, rows: np.ndarray) -> np.ndarray:
        return take_rows(self._array, rows)

    def write(self, rows: np.ndarray, values: np.ndarray) -> None:
        put_rows(self._array, rows, values)

    def grow(self, rows: int) -> None:
        size = rows * self._column.row_bytes
        if size <= self._size:
            return
        # The space is taken now: a full disk is an error here, and a crash once it is mapped.
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(self._file.fileno(), self._size, size - self._size)
        else:
            self._file.truncate(size)
        self._unmap()
        self._size = size
        self._map = mmap.mmap(self._file.fileno(), size)
        if hasattr(mmap, "MADV_RANDOM"):
            self._map.madvise(mmap.MADV_RANDOM)  # or each row would bring in its neighbours
        array = np.frombuffer(self._map, self._column.dtype)
        self._array = array.reshape(rows, *self._column.shape)

    def forget(self) -> None:
        """Let the pages that were used go from this process; the system writes what changed."""
        if self._map is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)

    def close(self) -> None:
        self._unmap()
        self._file.close()

    def _unmap(self) -> None:
        self._array = np.empty((0, *self._column.shape), self._column.dtype)  # holds the map open
        if self._map is not None:
            self._map.close()
            self._map = None
