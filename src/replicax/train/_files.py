"""A checkpoint as a folder: files of arrays, and `checkpoint.json` that describes them.

`arrays.bin` is what the chief writes, `arrays-3.bin` what worker 3 owns of arrays that no worker
has whole, or a shard that a parameter server has written. An array is one run of bytes, or boxes of
it in several files. The folder may be on a disk, or by URL wherever fsspec leads (`_bucket.py`).
What is read is checked by length and CRC-32.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from replicax._core import folder
from replicax._core.errors import CheckpointError

if TYPE_CHECKING:
    from replicax.train._arrays import Arrays
    from replicax.train._bucket import Bucket

# `_arrays` and `_bucket` are imported where they are used: a program that only writes needs this
# file alone, without JAX and Keras.

MANIFEST, ARRAYS = "checkpoint.json", "arrays.bin"
_FORMAT = 1
_ALIGNMENT = 64

Box = tuple[tuple[int, int], ...]
"""The first index and the one behind the last, for each axis."""


@dataclass(frozen=True)
class OnDisk:
    """The files of a folder on a disk; those in an object store are a `Bucket`."""

    place: Path

    def sizes(self) -> dict[str, int]:
        """The bytes of each file by name; empty where there is no folder."""
        if not self.place.is_dir():
            return {}
        return {entry.name: entry.stat().st_size for entry in os.scandir(self.place)}

    def read(self, name: str) -> bytes:
        return (self.place / name).read_bytes()

    def open(self, name: str) -> int:
        """A descriptor that a file can be read by, also after it is removed."""
        return os.open(self.place / name, os.O_RDONLY)

    def create(self, name: str) -> contextlib.AbstractContextManager[BinaryIO]:
        """A new file, which is safe from a loss of power when the block ends."""
        return folder.created(self.place / name)

    def changed_at(self, name: str) -> float:
        return (self.place / name).stat().st_mtime


def is_url(path: str) -> bool:
    """Whether fsspec opens a path, as `gs://bucket/run`."""
    return "://" in path


def _bucket(path: str) -> Bucket:
    from replicax.train._bucket import Bucket

    return Bucket(path)


@dataclass(frozen=True)
class Content:
    """The content of a checkpoint: a body for JSON, and arrays by name, which stay on the disk."""

    body: dict[str, Any]
    arrays: Arrays
    manifest: bytes


@dataclass(frozen=True)
class Piece:
    """A box of an array that one process writes; its bytes come as several arrays.

    If another process has it, `owner` lets that one write it to a file, and returns what
    `folder.append` says; None if it cannot.
    """

    name: str
    dtype: str
    whole: tuple[int, ...]  # the shape of the array
    box: Box
    chunks: Callable[[], Iterable[np.ndarray]]
    owner: Callable[[str], dict[str, int] | None] | None = None

    def written(self, file: str, part: Mapping[str, int]) -> dict[str, Any]:
        """The entry for `Draft.commit`, once the piece is in a file."""
        where = {"file": file, "box": [list(axis) for axis in self.box], **part}
        return {"name": self.name, "dtype": self.dtype, "shape": [*self.whole], "part": where}


def whole_box(shape: Sequence[int]) -> Box:
    return tuple((0, length) for length in shape)


def whole(name: str, array: np.ndarray) -> Piece:
    """An array that one process has whole."""
    return Piece(name, array.dtype.name, array.shape, whole_box(array.shape), lambda: [array])


class Draft:
    """A checkpoint in the making: the chief makes it, and commits what all have written.

    `place` is where all write, each a file of another name. `label` is its own part of these names.

    Raises:
        UsageError: If something else is there, which would be lost.
    """

    def __init__(self, path: str) -> None:
        self._path, self.label = path, ""
        self._is_there = False
        if is_url(path):
            self.place = path
            self.label = f"-{uuid.uuid4().hex[:8]}"  # files of the checkpoint that it replaces stay
            _bucket(path).refuse_others({MANIFEST})
        else:
            self._folder = folder.NewFolder(path, {MANIFEST, ARRAYS})
            self.place = str(self._folder.path)

    def commit(self, body: dict[str, Any], written: Iterable[Sequence[dict[str, Any]]]) -> None:
        """Make it a checkpoint; `written` is what `write_arrays` returned for each process."""
        entries: dict[str, Any] = {}
        for one in (one for part in written for one in part):
            name, dtype, shape, own = one["name"], one["dtype"], one["shape"], one["part"]
            if own["box"] == [[0, length] for length in shape] and own["file"] == ARRAYS:
                own = {key: own[key] for key in ("offset", "size", "crc32")}
                entries[name] = {"dtype": dtype, "shape": shape, **own}
            else:
                entry = entries.setdefault(name, {"dtype": dtype, "shape": shape, "parts": []})
                entry["parts"].append(own)
        body = {**body, "arrays": entries}
        files = files_at(self.place)
        sizes = files.sizes()
        if missing := [name for name, size in _lengths(body).items() if sizes.get(name) != size]:
            raise CheckpointError(
                f"The chief does not see all of {missing[0]!r}, which another worker has written "
                f"to {self._path!r}. Nothing was replaced. Save to a folder that "
                "all workers share. See docs/fault_tolerance.md."
            )
        with files.create(MANIFEST) as file:
            file.write(_manifest(body).encode())
        if is_url(self._path):
            from replicax.train._bucket import is_of_arrays

            self._is_there = True
            self._remove_old({name for name in sizes if is_of_arrays(name)} - {*_lengths(body)})
        else:
            self._folder.finish()

    def _remove_old(self, names: set[str]) -> None:
        """Remove the files of the checkpoint that was there; the new one is whole without it."""
        try:
            _bucket(self._path).remove(names)
        except OSError as error:
            text = (
                "The checkpoint %r is written, but files of the one before could not be removed: %s"
            )
            logging.getLogger("replicax").warning(text, self._path, error)

    def discard(self) -> None:
        """Remove what was written."""
        if not is_url(self._path):
            self._folder.discard()
        elif not self._is_there:
            bucket = _bucket(self._path)
            bucket.remove({name for name in bucket.sizes() if self.label in name})


def files_at(place: str) -> OnDisk | Bucket:
    """The files of a folder, at a path or URL."""
    return _bucket(place) if is_url(place) else OnDisk(Path(place))


def file_of(worker: int, label: str = "") -> str:
    """The name of the file that a worker writes."""
    return f"arrays{label}-{worker}.bin" if worker or label else ARRAYS


def write_arrays(place: str, name: str, pieces: Iterable[Piece]) -> list[dict[str, Any]]:
    """Write a file of pieces, one after another; returns what `Draft.commit` takes."""
    found = []
    with files_at(place).create(name) as file:
        for piece in pieces:
            file.write(bytes(-file.tell() % _ALIGNMENT))
            found.append(piece.written(name, folder.append(file, map(_bytes, piece.chunks()))))
    return found


def _bytes(array: np.ndarray) -> memoryview:
    """Plain bytes, because NumPy's own formats do not know bfloat16 and float8."""
    return memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8))  # pyright: ignore[reportArgumentType]


def _written_by_owners(
    place: str, pieces: Iterable[Piece]
) -> tuple[list[Piece], list[dict[str, Any]]]:
    """Let other processes write what they own, each to a file of its own.

    Returns the pieces that are left, and what `write_arrays` returns for the others.
    """
    left: list[Piece] = []
    found: list[dict[str, Any]] = []
    for number, piece in enumerate(pieces, 1):
        file = file_of(number)
        path = os.path.join(place, file)
        part = None if piece.owner is None or is_url(place) else piece.owner(path)
        if part is not None:
            found.append(piece.written(file, part))
            continue
        left.append(piece)
        if os.path.exists(path):  # only a part of it was written
            os.remove(path)
    return left, found


def write(path: str, body: dict[str, Any], pieces: Iterable[Piece]) -> None:
    """Write a checkpoint atomically: whatever ends the program, it is complete or absent.

    It replaces a checkpoint, but nothing else, which would be lost.
    """
    with refused_by_disk(path):
        draft = Draft(path)
        try:
            name = file_of(0, draft.label)
            left, by_owners = _written_by_owners(draft.place, pieces)
            draft.commit(body, [write_arrays(draft.place, name, left), by_owners])
        except BaseException:
            draft.discard()
            raise


@contextlib.contextmanager
def refused_by_disk(path: str) -> Iterator[None]:
    """Say in errors of the disk that nothing is lost."""
    try:
        yield
    except OSError as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(
            f"Cannot write a checkpoint at {path!r}: {error.strerror or error}. What was there is "
            "unchanged. Make room, or use another folder."
        ) from error


def opened(path: str) -> Content:
    """A checkpoint whose arrays are read when they are asked for."""
    files = located(path)
    if files is None and is_there(path):
        raise damaged(path, f"{MANIFEST} or its files of arrays")
    if files is None:
        raise CheckpointError(
            f"No checkpoint at {path!r}: it has no `{MANIFEST}`. Use "
            "`rx.train.latest_checkpoint(directory)` to find the newest complete checkpoint."
        )
    return described(files.read(MANIFEST), path, files.open)


def described(manifest: bytes, path: str, open_file: Callable[[str], int]) -> Content:
    """The content that a manifest describes; `path` is for messages."""
    from replicax.train._arrays import Arrays

    body = _parsed(manifest)
    if body is None:
        raise damaged(path, MANIFEST)
    arrays = Arrays(path, body.pop("arrays"), open_file)
    return Content(body, arrays, manifest)


def lengths(manifest: bytes) -> dict[str, int]:
    """The bytes of each file of arrays that a manifest names."""
    body = _parsed(manifest)
    return {} if body is None else _lengths(body)


def in_order(entries: Mapping[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    """Name, file and part of all arrays, as they lie in the files."""
    found = [
        (name, part.get("file", ARRAYS), part)
        for name, entry in entries.items()
        for part in entry.get("parts", [entry])
    ]
    return sorted(found, key=lambda one: (one[1], one[2]["offset"]))


def _lengths(body: Mapping[str, Any]) -> dict[str, int]:
    found: dict[str, int] = {}
    for _, file, part in in_order(body["arrays"]):
        found[file] = part["offset"] + part["size"]
    return found


def damaged(path: str, where: str) -> CheckpointError:
    """The error of a checkpoint that is not what was written."""
    return CheckpointError(
        f"The checkpoint {path!r} is damaged: its {where} has another length or checksum than "
        "was written. Restore an older checkpoint, or copy it again; remove it to begin anew."
    )


def identity(path: str) -> str | None:
    """A value that tells checkpoints apart; None without a complete one."""
    files = located(path)
    return None if files is None else json.loads(files.read(MANIFEST))["checksum"]


def located(path: str) -> OnDisk | Bucket | None:
    """The files of a whole checkpoint: while it is replaced, the old one is set aside."""
    if is_url(path):
        found = _bucket(path)
        return found if _is_whole(found) else None
    # On a disk the chief's file is there, whatever it has to write.
    place = folder.located(path, lambda place: _is_whole(OnDisk(place), {ARRAYS: 0}))
    return None if place is None else OnDisk(place)


def is_there(path: str) -> bool:
    """Whether there is a checkpoint at this path, complete or damaged."""
    marks = {MANIFEST, ARRAYS}
    if is_url(path):
        return not marks.isdisjoint(_bucket(path).sizes())
    return (
        folder.located(path, lambda place: not marks.isdisjoint(OnDisk(place).sizes())) is not None
    )


def written_at(path: str) -> float:
    """The time at which a checkpoint was written, in seconds."""
    files = located(path)
    return 0.0 if files is None else files.changed_at(MANIFEST)


def names_in(directory: str) -> list[str]:
    """The names in a folder; none without a folder."""
    try:
        return _bucket(directory).names() if is_url(directory) else os.listdir(directory)
    except OSError:
        return []


def remove(path: str) -> None:
    """Remove a checkpoint; a kill meanwhile leaves no half of it that counts."""
    if is_url(path):
        _bucket(path).remove_all(first=MANIFEST)
    else:
        folder.remove(path)


def remove_tree(directory: str) -> None:
    """Remove a folder of checkpoints with all that is in it."""
    if is_url(directory):
        _bucket(directory).remove_all()
    else:
        shutil.rmtree(directory, ignore_errors=True)


def _manifest(body: dict[str, Any]) -> str:
    unique = uuid.uuid4().hex
    text = json.dumps(body, sort_keys=True) + unique
    checksum = f"{zlib.crc32(text.encode()):08x}-{unique}"
    return _rendered({"format": _FORMAT, "checksum": checksum, "body": body})


def _rendered(manifest: dict[str, Any]) -> str:
    return json.dumps(manifest, indent=1)


def _parsed(manifest: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(manifest)
        if manifest != _rendered(found).encode() or found["format"] != _FORMAT:
            return None
        text = json.dumps(found["body"], sort_keys=True)
        checksum, _, unique = found["checksum"].partition("-")
        # In checkpoints of older versions it does not count the unique part.
        wanted = {f"{zlib.crc32(one.encode()):08x}" for one in (text, text + unique)}
        return found["body"] if checksum in wanted else None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _is_whole(files: OnDisk | Bucket, least: Mapping[str, int] = MappingProxyType({})) -> bool:
    """Whether the files have the lengths they were written with; arrays are not read."""
    try:
        body = _parsed(files.read(MANIFEST))
        sizes = files.sizes()
    except OSError:
        return False
    if body is None:
        return False
    return all(sizes.get(name) == size for name, size in {**least, **_lengths(body)}.items())
