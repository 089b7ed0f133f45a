"""Saved elements from files: rows by number, or one after the other."""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO, final

import jax
import numpy as np

from replicax._core.errors import CorruptRecord
from replicax.data._formats.format import open_bytes
from replicax.data._nodes.sources import ArrayTable
from replicax.data._save import HEADER, Leaf, read_manifest, stored
from replicax.data._spec import stack

# Touched pages of a memory map count as the process's memory, so maps are for small files.
_MAPPED = 128 * 2**20  # bytes


@final
class Mapped:
    """A small file as an array whose pages the system reads on access."""

    def __init__(self, path: str, dtype: np.dtype) -> None:
        try:
            found = np.load(path, mmap_mode="r", allow_pickle=False)
        except ValueError as error:
            raise CorruptRecord(
                f"Cannot read {path!r}: {error}. Save the data set again."
            ) from error
        self._array = np.asarray(found).view(dtype)

    def read(self, start: int, stop: int) -> np.ndarray:
        """Neighbouring values, in memory of their own."""
        return self._array[start:stop].copy()

    def take(self, numbers: np.ndarray) -> np.ndarray:
        """Any values, in memory of their own."""
        return ArrayTable(self._array).rows(numbers)


@final
class Sought:
    """A large file, read only at the requested places."""

    def __init__(self, path: str, dtype: np.dtype, shape: Any) -> None:
        self._path, self._dtype, self._shape = path, dtype, shape
        self._size = _size_of(dtype, shape)
        self._descriptor = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self._descriptor)

    def read(self, start: int, stop: int) -> np.ndarray:
        """Neighbouring values."""
        data = np.empty(max(stop - start, 0) * self._size, np.uint8)
        self._fill(data, start)
        return data.view(self._dtype).reshape(stop - start, *self._shape)

    def take(self, numbers: np.ndarray) -> np.ndarray:
        """Any values."""
        first, count = int(numbers[0]), len(numbers)
        if (np.diff(numbers) == 1).all():
            return self.read(first, first + count)
        data = np.empty((count, self._size), np.uint8)
        row: Any  # NumPy's types do not declare it a buffer
        for row, number in zip(data, numbers.tolist(), strict=True):
            if os.preadv(self._descriptor, (row,), HEADER + number * self._size) != self._size:
                self._fill(row, number)
        return data.view(self._dtype).reshape(count, *self._shape)

    def _fill(self, data: Any, number: int) -> None:
        begin, done = HEADER + number * self._size, 0
        while done < len(data):
            read = os.preadv(self._descriptor, (data[done:],), begin + done)
            if not read:
                raise CorruptRecord(
                    f"{self._path!r} became shorter while it was read: it ends before value "
                    f"{number}. Save to another folder than the one in use."
                )
            done += read


@final
class Inflated:
    """A compressed file, which can only be read forward."""

    def __init__(self, path: str, dtype: np.dtype, shape: Any) -> None:
        self._path, self._dtype, self._shape = path, dtype, shape
        self._size = _size_of(dtype, shape)
        self._streams: list[BinaryIO] = []
        self._next = -1
        self._last = b""
        weakref.finalize(self, _close, self._streams)

    def read(self, start: int, stop: int) -> np.ndarray:
        """Neighbouring values; the last value of one read may be the first of the next."""
        if start == stop:
            return np.empty((0, *self._shape), self._dtype)
        kept = self._last if start == self._next - 1 and start < stop else b""
        missing = (stop - start) * self._size - len(kept)
        data = kept + self._at(start + bool(kept)).read(missing)
        if len(data) != (stop - start) * self._size:
            raise CorruptRecord(
                f"{self._path!r} ends before value {stop}. Save the data set again."
            )
        self._next = stop
        self._last = data[-self._size :] if 0 < self._size <= 8 else b""
        values = np.frombuffer(bytearray(data), stored(self._dtype)).view(self._dtype)
        return values.reshape(stop - start, *self._shape)

    def _at(self, number: int) -> BinaryIO:
        if not self._streams or number != self._next:
            _close(self._streams)
            start = HEADER + number * self._size
            self._streams.append(open_bytes(self._path, "GZIP", start))
            self._next = number
        return self._streams[0]


def _size_of(dtype: np.dtype, shape: Sequence[int | None]) -> int:
    return dtype.itemsize * math.prod(n or 0 for n in shape)


def _close(streams: list[BinaryIO]) -> None:
    while streams:
        streams.pop().close()


@final
class Column:
    """One array of the elements: the reading side of the writer's column.

    Text has a file of where each text begins (`offsets`). Rows of different shapes have files of
    the shapes (`shapes`) and of where the rows begin among the values (`starts`).
    """

    def __init__(self, leaf: Leaf, files: Mapping[str, Any]) -> None:
        self._leaf = leaf
        self._files = files
        self._is_plain = not leaf.varies and not leaf.is_text

    @property
    def row_bytes(self) -> int | None:
        """The bytes of a row that is stored as it is."""
        if not self._is_plain:
            return None
        return _size_of(np.dtype(self._leaf.dtype), self._leaf.shape)

    def rows(self, numbers: np.ndarray) -> Any:
        """A batch of rows."""
        return self._files["values"].take(numbers) if self._is_plain else stack(self.at(numbers))

    def at(self, numbers: np.ndarray) -> list[Any]:
        """Rows, one by one."""
        if self._is_plain:
            return list(self._files["values"].take(numbers))
        runs = np.split(numbers, np.flatnonzero(np.diff(numbers) != 1) + 1)
        return [row for run in runs for row in self.between(int(run[0]), int(run[-1]) + 1)]

    def between(self, start: int, stop: int) -> list[Any]:
        """Neighbouring rows, one by one."""
        if self._is_plain:
            return list(self._files["values"].read(start, stop))
        if self._leaf.varies:
            shapes = self._files["shapes"].read(start, stop).tolist()
            starts = self._files["starts"].read(start, stop + 1).tolist()
        else:
            shapes = [self._leaf.shape] * (stop - start)
            size = math.prod(n or 0 for n in self._leaf.shape)
            starts = [row * size for row in range(start, stop + 1)]
        items = self._items(starts[0], starts[-1])
        parts = zip(starts, starts[1:], shapes, strict=False)
        return [_shaped(items[a - starts[0] : b - starts[0]], shape) for a, b, shape in parts]

    def _items(self, start: int, stop: int) -> np.ndarray:
        if not self._leaf.is_text:
            return self._files["values"].read(start, stop)
        offsets = self._files["offsets"].read(start, stop + 1)
        data = self._files["values"].read(int(offsets[0]), int(offsets[-1])).tobytes()
        places = (offsets - offsets[0]).tolist()
        items = np.empty(stop - start, object)
        for number, (begin, end) in enumerate(zip(places, places[1:], strict=False)):
            text = data[begin:end]
            items[number] = text.decode() if self._leaf.dtype == "str" else text
        return items


def _shaped(items: np.ndarray, shape: Any) -> Any:
    return items.reshape(shape) if shape else items[0]


@final
class SavedTable:
    """The rows of a saved data set by number."""

    def __init__(self, columns: Sequence[Column], tree: Any) -> None:
        self._columns = columns
        self._tree = tree

    @property
    def row_bytes(self) -> int | None:
        sizes = [column.row_bytes for column in self._columns]
        return None if None in sizes else sum(size or 0 for size in sizes)

    def rows(self, handles: np.ndarray) -> Any:
        return self._tree.unflatten([column.rows(handles) for column in self._columns])

    def elements(self, handles: np.ndarray) -> list[Any]:
        found = [column.at(handles) for column in self._columns]
        return [self._tree.unflatten(row) for row in zip(*found, strict=True)]


@final
class Contents:
    """A saved data set; its files are open as long as this object lives, unless compressed."""

    def __init__(self, folder: str) -> None:
        self._folder = os.path.abspath(folder)
        self.manifest = read_manifest(folder)
        self._columns = None if self.manifest.compression else self._opened()

    @property
    def tree(self) -> Any:
        """The structure of an element."""
        return jax.tree.structure(self.manifest.structure)

    @property
    def table(self) -> SavedTable | None:
        """The table for reading rows by number, if that is quick."""
        mapped = self._columns
        return SavedTable(mapped, self.tree) if mapped else None

    def columns(self) -> Sequence[Column]:
        """The arrays of the elements, for one reader."""
        return self._opened() if self._columns is None else self._columns

    def _opened(self) -> list[Column]:
        return [self._column(number) for number in range(len(self.manifest.leaves))]

    def _column(self, number: int) -> Column:
        leaf = self.manifest.leaves[number]
        files = {name: self._file(f"{number}.{name}.npy", *how) for name, how in leaf.files.items()}
        return Column(leaf, files)

    def _file(self, name: str, dtype: np.dtype, shape: Sequence[int | None]) -> Any:
        path = os.path.join(self._folder, name)
        if self.manifest.compression:
            return Inflated(f"{path}.gz", dtype, shape)
        small = self.manifest.files[name] <= _MAPPED or not _size_of(dtype, shape)
        return Mapped(path, dtype) if small else Sought(path, dtype, shape)

    def __reduce__(self) -> Any:
        return Contents, (self._folder,)
