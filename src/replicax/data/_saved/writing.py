"""Elements to files; an interrupted write leaves nothing that looks like a data set."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any, final

import jax
import numpy as np

from replicax._core.errors import UsageError
from replicax._core.folder import NewFolder
from replicax.data._saved.manifest import NAME, Leaf, Manifest
from replicax.data._saved.stream import NumpyStream, stored
from replicax.data._spec import spec_of

_BLOCK = 2**16  # rows noted at a time when the first of another shape arrives


@final
class Writer:
    """Writes elements to a folder beside `path`, which takes its place when all are there."""

    def __init__(self, path: str) -> None:
        self._new = NewFolder(path, {NAME})
        self._folder = str(self._new.path)
        self._streams: list[NumpyStream] = []
        self._columns: list[Column] = []
        self._tree: Any = None
        self._rows = 0
        self.discard = weakref.finalize(self, _discard, self._streams, self._new)

    def append(self, element: Any) -> None:
        """Write an element, which is of arrays and like those before it."""
        leaves, tree = jax.tree.flatten(element)
        if self._tree is None:
            self._tree = tree
            opened = partial(_opened, self._streams, self._folder)
            self._columns = [Column(opened, number) for number in range(len(leaves))]
        if tree != self._tree or not leaves:
            raise _unlike(f"a nest {tree} after {self._rows} of {self._tree}")
        for column, leaf in zip(self._columns, leaves, strict=True):
            column.append(leaf)
        self._rows += 1

    def finish(self, compression: str | None = None, *, replace: bool = True) -> None:
        """Put the folder into its place at once; without `replace`, discard it if one is there."""
        leaves = tuple(column.finish() for column in self._columns)
        if compression == "GZIP":
            for stream in self._streams:
                stream.compress()
        structure = self._tree and self._tree.unflatten(range(len(leaves)))
        sizes = {os.path.basename(s.path): os.path.getsize(s.path) for s in self._streams}
        Manifest(self._rows, compression, structure, leaves, sizes).write(self._folder)
        self._new.finish(replace=replace)
        self.discard()


def _unlike(received: str) -> UsageError:
    return UsageError(
        f"Cannot save {received}. All elements need one structure, and arrays of one type and "
        "number of axes: use a `map` before, or `flat_map` for windows."
    )


@final
class Column:
    """One array of the elements: its values, and where the rows begin if they differ."""

    def __init__(self, open_stream: Any, number: int) -> None:
        self._open = lambda name, dtype: open_stream(f"{number}.{name}.npy", np.dtype(dtype))
        self._rows = self._items = self._bytes = 0
        self._dtype = ""
        self._shape: tuple[int | None, ...] = ()
        self._values: Any = None
        self._offsets: Any = None  # where each text begins in the values
        self._starts: Any = None  # where each of the differing rows begins among the items
        self._shapes: Any = None

    def append(self, leaf: Any) -> None:
        """Write the value of one element."""
        array = _as_array(leaf)
        dtype = _text_in(array) if array.dtype == object else _name_of(array.dtype)
        if not self._rows:
            self._begin(dtype, array)
        if self._offsets is not None and array.dtype == object:
            # An array without texts does not tell whether they are `str` or `bytes`.
            dtype = dtype or self._dtype
            self._dtype = self._dtype if self._items else dtype
        if (dtype, array.ndim) != (self._dtype, len(self._shape)):
            raise _unlike(f"{spec_of(leaf)} after {self._rows} of {self._shape} {self._dtype}")
        if array.shape != self._shape:
            self._vary(array.shape)
        self._rows += 1
        self._items += array.size
        if self._starts is not None:
            self._starts.write(np.array(self._items))
            self._shapes.write(np.array(array.shape, np.int64))
        if self._offsets is None:
            self._values.write(array)
        else:
            self._append_text(array.ravel().tolist())

    def _begin(self, dtype: str, array: np.ndarray) -> None:
        self._dtype, self._shape = dtype, array.shape
        if array.dtype != object:
            self._values = self._open("values", stored(array.dtype))
            return
        self._values = self._open("values", np.uint8)
        self._offsets = self._open("offsets", np.int64)
        self._offsets.write(np.array(0))

    def _append_text(self, texts: Sequence[Any]) -> None:
        encoded = [text.encode() if isinstance(text, str) else text for text in texts]
        self._values.write(np.frombuffer(b"".join(encoded), np.uint8))
        ends = self._bytes + np.cumsum([len(text) for text in encoded], dtype=np.int64)
        self._offsets.write(ends)
        self._bytes = int(ends[-1]) if texts else self._bytes

    def _vary(self, shape: tuple[int, ...]) -> None:
        """Note that rows differ in shape from now on; the earlier rows had one."""
        if self._starts is None:
            self._starts = self._open("starts", np.int64)
            self._shapes = self._open("shapes", np.int64)
            size = self._items // max(self._rows, 1)
            self._starts.write(np.array(0))
            for begin in range(1, self._rows + 1, _BLOCK):
                rows = np.arange(begin, min(begin + _BLOCK, self._rows + 1))
                self._starts.write(rows * size)
                self._shapes.write(np.tile(np.array(self._shape, np.int64), (len(rows), 1)))
        both = zip(self._shape, shape, strict=True)
        self._shape = tuple(a if a == b else None for a, b in both)

    def finish(self) -> Leaf:
        """Close the files."""
        if self._starts is not None:
            self._starts.finish((self._rows + 1,))
            self._shapes.finish((self._rows, len(self._shape)))
        if self._offsets is not None:
            self._offsets.finish((self._items + 1,))
            self._values.finish((self._bytes,))
        else:
            rows = (self._rows, *self._shape)
            self._values.finish(rows if self._starts is None else (self._items,))
        return Leaf(self._dtype or "str", self._shape)


def _as_array(leaf: Any) -> np.ndarray:
    try:
        array = np.asarray(leaf, object if isinstance(leaf, str | bytes) else None)
    except (TypeError, ValueError) as error:
        raise _unlike(f"a {type(leaf).__name__} ({error})") from error
    return array.astype(object) if array.dtype.kind in "US" else array


def _text_in(array: np.ndarray) -> str:
    kinds = {next((t for t in (str, bytes) if isinstance(v, t)), type(v)) for v in array.flat}
    if not kinds <= {str} and not kinds <= {bytes}:
        raise _unlike(f"an array that holds {', '.join(sorted(k.__name__ for k in kinds))}")
    return kinds.pop().__name__ if kinds else ""


def _name_of(dtype: np.dtype) -> str:
    # Types that NumPy does not have, such as bfloat16, are stored by name.
    name = dtype.name if dtype.kind == "V" else dtype.str
    if dtype.names or (dtype.kind == "V" and dtype.itemsize not in (1, 2, 4, 8)):
        raise _unlike(f"an array of type {dtype}")
    return name


def _opened(streams: list[NumpyStream], folder: str, name: str, dtype: np.dtype) -> NumpyStream:
    streams.append(NumpyStream(os.path.join(folder, name), dtype))
    return streams[-1]


def _discard(streams: Sequence[NumpyStream], folder: NewFolder) -> None:
    for stream in streams:
        with contextlib.suppress(OSError):  # the disk is full: the rest of the buffer is lost
            stream.close()
    folder.discard()
