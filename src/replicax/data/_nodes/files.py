"""Files: lists of them, and the records in them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from replicax.data._node import UNKNOWN_CARDINALITY, Cursor, Handles, Node, Path
from replicax.data._nodes.sources import ArrayTable, NumbersCursor
from replicax.data._spec import ArraySpec

if TYPE_CHECKING:
    from replicax.data._formats.format import FileFormat


@dataclass(frozen=True)
class FileList(Node):
    """File names as elements; what FILE sharding divides."""

    filenames: tuple[str, ...]

    @property
    def cardinality(self) -> int:
        return len(self.filenames)

    @property
    def spec(self) -> Any:
        return ArraySpec((), str)

    @property
    def table(self) -> ArrayTable:
        return ArrayTable(np.array(self.filenames, dtype=object))

    def open(self, path: Path) -> Cursor:
        return NumbersCursor(len(self.filenames))


@dataclass(frozen=True)
class FileRecords(Node):
    """The records of files, one file after the other; FILE sharding divides the files."""

    filenames: tuple[str, ...]
    format: FileFormat

    @property
    def cardinality(self) -> int:
        return UNKNOWN_CARDINALITY if self.filenames else 0

    def open(self, path: Path) -> Cursor:
        return FileRecordsCursor(self)


@final
class FileRecordsCursor(Cursor):
    """The number of a file and a position in it."""

    def __init__(self, node: FileRecords) -> None:
        self._node = node
        self._file = 0
        self._position: Any = None
        self._records: Iterator[tuple[Any, Any]] | None = None

    def read(self, count: int) -> Handles:
        names, found = self._node.filenames, []
        while self._file < len(names) and len(found) < count:
            if self._records is None:
                name = names[self._file]
                self._records = self._node.format.records(name, self._position)
            for element, position in itertools.islice(self._records, count - len(found)):
                self._position = position
                found.append(element)
            if len(found) < count:
                self._file, self._position, self._records = self._file + 1, None, None
        return found

    def get_state(self) -> Any:
        return {"file": self._file, "position": self._position}

    def set_state(self, state: Any) -> None:
        self._file, self._position = state["file"], state["position"]
