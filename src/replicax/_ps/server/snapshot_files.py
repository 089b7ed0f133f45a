"""The files of a server's snapshots: data, manifests that say what is where, and journals.

A manifest appears only when everything it refers to is on disk. Once there are two, older ones are
removed, with the data that neither needs. This file does not know the contents of a state.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, final

import numpy as np

from replicax._core.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

# A place in a data file: the file's name, start, length, checksum.
Piece = list[Any]

FORMAT = 2  # 1 held pickles
_ALIGNMENT = 64
_NAMES = re.compile(r"(data|manifest|journal)-(\d{8})-([0-9a-f]+)(\.partial)?")


class Damaged(CheckpointError):
    """Raised when a snapshot differs from what was written."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.path = path

    def __str__(self) -> str:
        return (
            f"A snapshot holds what was written. Received: '{self.path}', which is shorter, or has "
            "another checksum. The disk has lost something. An older snapshot is taken, if there "
            "is one that is whole."
        )


class OtherFormat(CheckpointError):
    """Raised for files of another version of Replicax, which are neither read nor unpickled."""

    def __init__(self, path: Path, found: Any) -> None:
        super().__init__(
            f"A snapshot of a parameter server is read in format {FORMAT}. Received: '{path}' in "
            f"format {found!r}. Older versions of Replicax wrote pickles, which can run any code. "
            "Restore a checkpoint in a new strategy, with another `snapshot_dir`."
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

    def name(self, kind: str, number: int) -> str:
        """The name of a file of ours."""
        return f"{kind}-{number:08d}-{self._writer}"

    def found(self, kind: str) -> list[tuple[int, Path]]:
        """The files of a kind with their numbers, oldest first."""
        named = ((_NAMES.fullmatch(path.name), path) for path in self.path.iterdir())
        return sorted(
            (int(match[2]), path)
            for match, path in named
            if match and match[1] == kind and not match[4]
        )

    def last_number(self) -> int:
        """The highest number of any file; 0 without one."""
        matches = (_NAMES.fullmatch(path.name) for path in self.path.iterdir())
        return max((int(match[2]) for match in matches if match), default=0)

    def data(self, number: int) -> DataFile:
        """A new data file."""
        return DataFile(self.path / self.name("data", number))

    def publish(self, number: int, body: dict[str, Any]) -> None:
        """Write the manifest; once it appears, everything it refers to is on disk."""
        target = self.path / self.name("manifest", number)
        partial = target.with_name(target.name + ".partial")
        text = json.dumps(body, sort_keys=True)
        with open(partial, "wb") as file:
            file.write(json.dumps([FORMAT, zlib.crc32(text.encode()), body]).encode())
            file.flush()
            os.fsync(file.fileno())
        os.rename(partial, target)
        self._sync()

    def body(self, path: Path) -> dict[str, Any]:
        """The contents of a manifest.

        `Damaged` if they differ from what was written, `OtherFormat` for another version of
        Replicax.
        """
        try:
            found, checksum, body = json.loads(path.read_bytes())
            text = json.dumps(body, sort_keys=True)
        except (ValueError, TypeError) as error:
            raise Damaged(path) from error
        if found != FORMAT:
            raise OtherFormat(path, found)
        if zlib.crc32(text.encode()) != checksum:
            raise Damaged(path)
        return body

    def read(self, piece: Piece) -> memoryview:
        """The bytes at a place; `Damaged` if they differ from what was written."""
        name, offset, size, checksum = piece
        if not _NAMES.fullmatch(name):  # a name only, never a path
            raise Damaged(self.path / "manifest")
        try:
            # Not mapped: the file may be removed, or its disk disappear.
            found: Any = np.fromfile(self.path / name, np.uint8, size, offset=offset)
        except OSError as error:
            raise Damaged(self.path / name) from error
        if len(found) != size or zlib.crc32(found) != checksum:
            raise Damaged(self.path / name)
        return memoryview(found)

    def size(self, names: Iterable[str]) -> int:
        """How many bytes some files take."""
        return sum((self.path / name).stat().st_size for name in set(names))

    def remove_unused(self, data: set[str], manifests: set[str], first_journal: int) -> None:
        """Remove files that no kept manifest needs, also those of dead writers."""
        for path in self.path.iterdir():
            match = _NAMES.fullmatch(path.name)
            if match is None:
                continue
            kept = {
                "data": path.name in data,
                "manifest": path.name in manifests,
                "journal": int(match[2]) >= first_journal,
            }[match[1]]
            if not kept or match[4]:
                path.unlink(missing_ok=True)

    def _sync(self) -> None:
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


@final
class DataFile:
    """A data file that is being written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = open(path, "xb")  # noqa: SIM115 (`finish` or `discard` close it)

    def add(self, buffers: Sequence[Any]) -> Piece:
        """Append bytes and return their place."""
        self._file.write(bytes(-self._file.tell() % _ALIGNMENT))
        start, checksum = self._file.tell(), 0
        for buffer in buffers:
            checksum = zlib.crc32(buffer, checksum)
            self._file.write(buffer)
        return [self.path.name, start, self._file.tell() - start, checksum]

    def finish(self) -> None:
        """Force everything to the disk."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def discard(self) -> None:
        """Remove the unfinished file."""
        self._file.close()
        self.path.unlink(missing_ok=True)
