"""Data sets on disk: one that was saved, and a cache that is filled by the first pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import jax

from replicax.data._node import Cursor, Handles, Node, Path, open_elements
from replicax.data._nodes.select import SelectionOfElements
from replicax.data._nodes.sources import NumbersCursor, first_spec
from replicax.data._saved.manifest import is_saved
from replicax.data._saved.reading import Contents
from replicax.data._saved.writing import Writer

if TYPE_CHECKING:
    from replicax.data._saved.reading import Column, SavedTable


@dataclass(frozen=True, eq=False)
class Saved(Node):
    """The elements of a saved data set."""

    contents: Contents

    @property
    def cardinality(self) -> int:
        return self.contents.manifest.rows

    @property
    def spec(self) -> Any:
        manifest = self.contents.manifest
        if not manifest.rows:
            return first_spec(self)
        return jax.tree.map(lambda number: manifest.leaves[number].spec, manifest.structure)

    @property
    def table(self) -> SavedTable | None:
        return self.contents.table

    def open(self, path: Path) -> Cursor:
        if self.table is not None:
            return NumbersCursor(self.cardinality)
        return SavedCursor(self.contents)


@final
class SavedCursor(Cursor):
    """Saved elements in order; the position is a number."""

    def __init__(self, contents: Contents) -> None:
        self._contents = contents
        self._columns: Sequence[Column] | None = None
        self._next = 0

    def read(self, count: int) -> Handles:
        if self._columns is None:
            self._columns = self._contents.columns()
        begin = self._next
        self.skip(count)
        if begin == self._next:
            return []
        found = [column.between(begin, self._next) for column in self._columns]
        return [self._contents.tree.unflatten(row) for row in zip(*found, strict=True)]

    def skip(self, count: int) -> None:
        self._next = min(self._next + count, self._contents.manifest.rows)

    def get_state(self) -> Any:
        return self._next

    def set_state(self, state: Any) -> None:
        self._next = state


@dataclass(frozen=True, eq=False)
class FileCache(SelectionOfElements, Node):
    """The elements of the first complete pass, kept in a folder; later passes read them.

    `part` names the part of the data that the folder belongs to. Handles are the same in all
    passes, so that a position of one pass is valid in another.
    """

    input: Node
    filename: str
    part: tuple[int | str, ...] = ()

    @property
    def folder(self) -> str:
        """Where the elements are kept."""
        return "-".join([self.filename, *map(str, self.part)])

    @property
    def kept(self) -> Saved | None:
        """The data set that a complete pass has written, if any."""
        return Saved(Contents(self.folder)) if is_saved(self.folder) else None

    @property
    def cardinality(self) -> int:
        return (self.kept or self.input).cardinality

    @property
    def spec(self) -> Any:
        return (self.kept or self.input).spec

    @property
    def sample(self) -> Node:
        return self.kept or self.input.sample

    def open(self, path: Path) -> Cursor:
        kept = self.kept
        # Every pass has the path of the first: a pass resumed at a position goes on filling the
        # cache.
        return FillingCursor(self, (0,) * len(path)) if kept is None else SavedCursor(kept.contents)


@final
class FillingCursor(Cursor):
    """Reads the input and writes its elements; complete, they become the cache."""

    def __init__(self, node: FileCache, path: Path) -> None:
        self._folder = node.folder
        self._source = open_elements(node.input, path)
        self._writer: Writer | None = None
        self._sound = True  # no error has occurred
        self._taken = 0

    def read(self, count: int) -> Handles:
        sound, self._sound = self._sound, False
        found = list(self._source.read(count))
        if sound:
            self._keep(found, at_end=len(found) < count)
        self._taken += len(found)
        self._sound = sound and len(found) == count
        return found

    def _keep(self, elements: Sequence[Any], *, at_end: bool) -> None:
        if self._writer is None:
            self._writer = Writer(self._folder)
        for element in elements:
            self._writer.append(element)
        if at_end:
            self._writer.finish(replace=False)
            self._writer = None

    def get_state(self) -> Any:
        return self._taken

    def set_state(self, state: Any) -> None:
        self.skip(state)
