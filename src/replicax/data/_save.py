"""The format of `Dataset.save`: a folder of NumPy files and a description; and how it is written.

An interrupted write leaves nothing that looks like a data set.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import gzip
import json
import os
import shutil
import struct
import sys
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO, final

import jax
import numpy as np

from replicax._core.errors import CorruptRecord, UsageError
from replicax._core.folder import NewFolder, named
from replicax.data._spec import ArraySpec, spec_of

NAME = "replicax.json"

_VERSION = 1
_TEXT = {"str": str, "bytes": bytes}


@dataclass(frozen=True)
class Leaf:
    """One array of the elements; an axis whose size varies is None."""

    dtype: str
    shape: tuple[int | None, ...]

    @property
    def spec(self) -> ArraySpec:
        """The spec of this array in an element."""
        return ArraySpec(self.shape, _TEXT.get(self.dtype) or np.dtype(self.dtype))

    @property
    def varies(self) -> bool:
        """Whether the rows have different shapes."""
        return None in self.shape

    @property
    def is_text(self) -> bool:
        """Whether its values are `str` or `bytes`."""
        return self.dtype in _TEXT

    @property
    def files(self) -> dict[str, tuple[Any, tuple[int | None, ...]]]:
        """The type and the item shape of each of its files."""
        flat = self.is_text or self.varies
        dtype = np.uint8 if self.is_text else self.dtype
        files: dict[str, Any] = {"values": (np.dtype(dtype), () if flat else self.shape)}
        if self.is_text:
            files["offsets"] = (np.dtype(np.int64), ())
        if self.varies:
            files["starts"] = (np.dtype(np.int64), ())
            files["shapes"] = (np.dtype(np.int64), (len(self.shape),))
        return files


@dataclass(frozen=True)
class Manifest:
    """The contents of a saved data set; `files` has sizes in bytes.

    The structure is the nest of an element, with the number of a leaf in each place.
    """

    rows: int
    compression: str | None
    structure: Any
    leaves: tuple[Leaf, ...]
    files: Mapping[str, int]

    def write(self, folder: str) -> None:
        """Put the description into the folder, which makes it a saved data set."""
        fields = {**vars(self), "structure": _as_json(self.structure), "version": _VERSION}
        fields["leaves"] = [dataclasses.asdict(leaf) for leaf in self.leaves]
        with open(os.path.join(folder, NAME), "w") as file:
            json.dump(fields, file, indent=1)


def is_saved(folder: str) -> bool:
    """Whether a complete data set is there."""
    return os.path.isfile(os.path.join(folder, NAME))


def read_manifest(folder: str) -> Manifest:
    """The description of the data set that is saved there, whose files have been checked."""
    if not is_saved(folder):
        raise UsageError(
            f"{folder!r} is no saved data set: it has no {NAME}. Check the path; an interrupted "
            "`save` leaves nothing."
        )
    try:
        with open(os.path.join(folder, NAME)) as file:
            fields = json.load(file)
        version = fields.pop("version")
        if version == _VERSION:
            leaves = [Leaf(leaf["dtype"], tuple(leaf["shape"])) for leaf in fields.pop("leaves")]
            structure = _from_json(fields.pop("structure"))
            manifest = Manifest(leaves=tuple(leaves), structure=structure, **fields)
            _check_files(folder, manifest.files)
            return manifest
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, CorruptRecord):
            raise
        raise CorruptRecord(
            f"{NAME} in {folder!r} cannot be understood: {error!r}. Save the data set again."
        ) from error
    raise UsageError(
        f"{folder!r} was saved as version {version}, but this release reads version {_VERSION}. "
        "Save the data set again."
    )


def _check_files(folder: str, files: Mapping[str, int]) -> None:
    for name, size in files.items():
        path = os.path.join(folder, name)
        found = os.path.getsize(path) if os.path.exists(path) else None
        if found != size:
            raise CorruptRecord(
                f"{path!r} {'is missing' if found is None else f'has {found} bytes'}, where {size} "
                "bytes were written. Copy or save the data set again."
            )


def _as_json(nest: Any) -> Any:
    """A nest of numbers in JSON, which tells tuples from lists and keys that are not text."""
    if isinstance(nest, int):
        return nest
    if nest is None:
        return {"kind": "none"}
    if type(nest) is dict and all(type(key) in (str, int) for key in nest):
        return {"kind": "dict", "items": [[key, _as_json(part)] for key, part in nest.items()]}
    if isinstance(nest, tuple):
        parts = [_as_json(part) for part in nest]
        if type(nest) is tuple:
            return {"kind": "tuple", "parts": parts}
        kind: Any = type(nest)
        name = {"module": kind.__module__, "name": kind.__qualname__}
        if hasattr(kind, "_fields"):
            return {"kind": "namedtuple", **name, "fields": kind._fields, "parts": parts}
    raise UsageError(
        f"Cannot save elements with a {type(nest).__name__}, {nest!r}, where numbers stand for "
        "arrays. Make tuples, named tuples, or dicts with text or integer keys of it, with a `map` "
        "before."
    )


def _from_json(nest: Any) -> Any:
    if nest is None or isinstance(nest, int):
        return nest
    match nest["kind"]:
        case "none":
            return None
        case "dict":
            return {key: _from_json(part) for key, part in nest["items"]}
        case "tuple":
            return tuple(_from_json(part) for part in nest["parts"])
    kind = _named_tuple(nest["module"], nest["name"], nest["fields"])
    return kind(*[_from_json(part) for part in nest["parts"]])


def _named_tuple(module: str, name: str, fields: list[str]) -> Any:
    """The program's class of this name, or else a similar one."""
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if isinstance(found, type) and getattr(found, "_fields", None) == tuple(fields):
        return found
    return collections.namedtuple(name.rpartition(".")[2], fields)


HEADER = 4096  # bytes before the values of a file: a page, for alignment

_BUFFER = 2**20


def stored(dtype: np.dtype) -> np.dtype:
    """The type that stores values of this type in a file and that every NumPy knows."""
    return np.dtype(f"<u{dtype.itemsize}") if dtype.kind == "V" else dtype


@final
class NumpyStream:
    """A `.npy` file that grows; its header is written last, when the shape is known."""

    def __init__(self, path: str, dtype: np.dtype) -> None:
        self.path = path
        self._dtype = dtype
        self._file: BinaryIO = open(path, "wb", buffering=_BUFFER)  # noqa: SIM115
        self._file.write(bytes(HEADER))

    def write(self, array: np.ndarray) -> None:
        """Add values."""
        self._file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)

    def finish(self, shape: tuple[int | None, ...]) -> None:
        """Write the header and close the file."""
        text = repr({"descr": self._dtype.str, "fortran_order": False, "shape": shape})
        prefix = b"\x93NUMPY\x02\x00" + struct.pack("<I", HEADER - 12)
        self._file.seek(0)
        self._file.write(prefix + text.encode().ljust(HEADER - 13) + b"\n")
        self._file.close()

    def compress(self) -> None:
        """Replace the file by a compressed one."""
        plain, self.path = self.path, f"{self.path}.gz"
        with (
            open(plain, "rb") as source,
            open(self.path, "wb") as file,
            gzip.GzipFile("", "wb", compresslevel=6, fileobj=file, mtime=0) as target,
        ):
            shutil.copyfileobj(source, target, _BUFFER)
        os.remove(plain)

    def close(self) -> None:
        """Close the file as it is."""
        self._file.close()


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
        with named(self._new.target):
            for column, leaf in zip(self._columns, leaves, strict=True):
                column.append(leaf)
        self._rows += 1

    def finish(self, compression: str | None = None, *, replace: bool = True) -> None:
        """Put the folder into its place at once; without `replace`, discard it if one is there."""
        with named(self._new.target):
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
