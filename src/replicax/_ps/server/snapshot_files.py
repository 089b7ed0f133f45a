"""The files of a server's snapshots: a folder for each, and journals beside them.

A snapshot is a journal for each cell, and `state.json`, which says what is in them. A cell that has
not changed is a hard link to the file of the snapshot before. A cell is a record for its value and
one for each slot; if it is trained by rows, records of some rows with all their values.

A journal beside them has the coordinator's changes since a snapshot or the start, without pushes of
closures. A server that dies loses some pushes, which training can do without; it must not lose that
a variable was made, or what a program has assigned.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import struct
import threading
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, final

import numpy as np

from replicax._core import folder
from replicax._core.errors import CheckpointError
from replicax._net import Message, array_of, encode, numbers_of, parse, raw
from replicax._ps.server.server_state import cell_of, described_cell

if TYPE_CHECKING:
    from pathlib import Path

    from replicax._ps.server.code import Code
    from replicax._ps.server.server import ParameterServer
    from replicax._ps.server.server_state import CellState

Entry = Mapping[str, Any]

FORMAT = 5  # 1 held pickles
_STATE = "state.json"
_NAMES = re.compile(r"\.?(snapshot|journal)-(\d{8})-([0-9a-f]+)(\..+)?")
# The checksum and the length of the message that follows.
_LENGTH = struct.Struct("!IQ")


class Damaged(CheckpointError):
    """Raised when a snapshot differs from what was written."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.path = path

    def __str__(self) -> str:
        return (
            f"The snapshot '{self.path}' is damaged: it is too short or has a wrong checksum. The "
            "server uses an older complete snapshot if there is one."
        )


class OtherFormat(CheckpointError):
    """Raised for files of another version of Replicax, which are neither read nor unpickled."""

    def __init__(self, path: Path, found: Any) -> None:
        super().__init__(
            f"Cannot read the snapshot '{path}': its format is {found!r}, not {FORMAT}. Restore a "
            "checkpoint in a new strategy with another `snapshot_dir`."
        )


@final
class SnapshotFolder:
    """The private folder of one server.

    `writer` names this process, so that two processes that write here do not collide.
    """

    def __init__(self, path: Path, writer: str) -> None:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.path = path
        self._writer = writer

    def at(self, kind: str, number: int) -> Path:
        """The path of a snapshot or journal of ours."""
        return self.path / f"{kind}-{number:08d}-{self._writer}"

    def found(self, kind: str) -> list[tuple[int, Path]]:
        """The snapshots or journals with their numbers, oldest first."""
        return sorted(
            (int(match[2]), path)
            for match, path in self._named()
            if match[1] == kind and path.name == match[0].lstrip(".") and not match[4]
        )

    def last_number(self) -> int:
        """The highest number of anything; 0 without it."""
        return max((int(match[2]) for match, _ in self._named()), default=0)

    def new(self, number: int) -> folder.NewFolder:
        """A snapshot in the making."""
        return folder.NewFolder(self.at("snapshot", number), {_STATE})

    def tidy(self, kept: set[Path], first_journal: int) -> None:
        """Remove the snapshots that are not kept, and older journals, also of dead writers."""
        for match, path in self._named():
            if match[1] == "journal" and int(match[2]) < first_journal:
                path.unlink(missing_ok=True)
            elif match[1] != "journal" and path not in kept:
                shutil.rmtree(path, ignore_errors=True)

    def _named(self) -> list[tuple[re.Match[str], Path]]:
        named = ((_NAMES.fullmatch(path.name), path) for path in self.path.iterdir())
        return [(match, path) for match, path in named if match]


def write_state(place: Path, body: dict[str, Any]) -> None:
    """Write what a snapshot holds beside the contents of its cells."""
    text = json.dumps(body, sort_keys=True)
    (place / _STATE).write_text(json.dumps([FORMAT, zlib.crc32(text.encode()), body]))


def read_state(place: Path) -> dict[str, Any]:
    """Read the state that `write_state` wrote.

    `Damaged` if it differs, `OtherFormat` for another version of Replicax.
    """
    path = place / _STATE
    try:
        found, checksum, body = json.loads(path.read_bytes())
        text = json.dumps(body, sort_keys=True)
    except (OSError, ValueError, TypeError) as error:
        raise Damaged(path) from error
    if found != FORMAT:
        raise OtherFormat(path, found)
    if zlib.crc32(text.encode()) != checksum:
        raise Damaged(path)
    return body


def _file_of(place: Path, number: Any) -> Path:
    return place / f"cell-{int(number)}.bin"


def keep_cell(place: Path, before: Path, number: int) -> None:
    """Let a snapshot have a cell as the one before it has it."""
    old, new = _file_of(before, number), _file_of(place, number)
    try:
        os.link(old, new)
    except OSError:  # a file system without hard links
        shutil.copyfile(old, new)


def write_cell(server: ParameterServer, state: CellState, place: Path) -> Entry:
    """Write the file of a cell and return its entry."""
    count, arrays = 0, state.arrays if state.rows is None else state.rows.arrays
    with closing(Journal(_file_of(place, state.number))) as file:
        if state.rows is None:
            pieces: Iterable[list[Any]] = ([raw(array)] for array in arrays)
        else:
            chunks = state.rows.chunks(server.lock)
            pieces = ([raw(rows), *map(raw, columns)] for rows, columns in chunks)
        for buffers in pieces:
            file.append("cell", {}, buffers)
            count += 1
    about = described_cell(server.code, state, arrays)
    return {**about, "records": count, "by_rows": state.rows is not None}


def read_cell(place: Path, entry: Entry, code: Code) -> Any:
    """The cell of an entry, with code that the server has been sent.

    `Damaged` if it differs from what was written.
    """
    path, types = _file_of(place, entry["number"]), entry["arrays"]
    count, arrays = 0, list[Any]()
    if entry["by_rows"]:  # it needs memory of its own, to be changed in place
        arrays = [np.empty(shape, np.dtype(dtype)) for dtype, shape in types]
    try:
        for count, record in enumerate(records(path), 1):
            if entry["by_rows"]:
                rows, *columns = record.buffers
                for array, column in zip(arrays, columns, strict=True):
                    some = numbers_of(rows)
                    array[some] = array_of(column, array.dtype, (len(some), *array.shape[1:]))
            else:  # a copy, because data in a message may not be aligned
                arrays.append(array_of(bytes(record.buffers[0]), *types[count - 1]))
    except OSError as error:
        raise Damaged(path) from error
    if count != entry["records"]:
        raise Damaged(path)
    return cell_of(code, entry, arrays)


@final
class Journal:
    """A journal that is being written.

    Each change is handed to the system before it is answered, so it outlives this process. It is
    not forced to the disk, as snapshots are: a machine that loses power may lose the last seconds.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._file: Any = open(path, "xb", buffering=0)  # noqa: SIM115 (`close` does)

    def append(self, op: str, head: dict[str, Any], buffers: Sequence[Any] = ()) -> None:
        message = encode(op, head, buffers)
        first, *pieces = message.pieces
        checksum = zlib.crc32(first)
        for piece in pieces:
            checksum = zlib.crc32(piece, checksum)
        with self._lock:
            if self._file is None:
                return  # this server has ended, and its further changes do not count
            for part in (_LENGTH.pack(checksum, message.size) + first, *pieces):
                _write(self._file, part)

    def close(self) -> None:
        with self._lock:
            file, self._file = self._file, None
        if file is not None:
            file.close()


def records(path: Path) -> Iterator[Message]:
    """The messages of a journal; a truncated last one, which was never answered, is left out."""
    with open(path, "rb") as file:
        while len(lengths := file.read(_LENGTH.size)) == _LENGTH.size:
            checksum, size = _LENGTH.unpack(lengths)
            if size > path.stat().st_size - file.tell():
                return
            data = memoryview(file.read(size))
            if zlib.crc32(data) != checksum:
                return
            yield parse(data)


def _write(file: Any, data: Any) -> None:
    view = memoryview(data).cast("B")
    while len(view):
        view = view[file.write(view) :]
