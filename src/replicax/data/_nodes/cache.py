"""Elements kept from the first complete pass on, in memory or on disk; and saved data sets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, final

import jax

from replicax.data._load import Contents
from replicax.data._node import (
    CountCursor,
    Cursor,
    Handles,
    Node,
    Path,
    Selection,
    SelectionOfElements,
    Table,
    first_spec,
    open_elements,
)
from replicax.data._nodes.sources import ElementsCursor, NumbersCursor
from replicax.data._save import Writer, is_saved
from replicax.data._spec import read_only

if TYPE_CHECKING:
    from replicax.data._load import Column, SavedTable


_FIRST: Path = (0,)


@dataclass(eq=False)
class Memory:
    """The elements of a complete pass; None before there was one.

    The share of a worker has a memory of its own among the parts.
    """

    elements: list[Any] | None = None
    parts: dict[Any, Memory] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Cache(Selection):
    """The elements of the first complete pass, kept in memory; later passes read them."""

    memory: Memory = field(default_factory=Memory)

    def reseeded(self, seeds: Mapping[int, int]) -> Node:
        return self.with_own_cache("seeds", *seeds.values())

    def with_own_cache(self, *part: int | str) -> Node:
        return replace(self, memory=self.memory.parts.setdefault(part, Memory()))

    @property
    def table(self) -> Table | None:
        # Rows in memory need no cache.
        table = self.input.table
        return table if table is not None and table.row_bytes is not None else None

    def open(self, path: Path) -> Cursor:
        # Every pass has the path of the first, so that a resumed pass goes on filling the cache.
        if self.table is not None:
            return self.input.open(_FIRST)
        if self.memory.elements is not None:
            return ElementsCursor(self.memory.elements)
        return FillingCursor(self.input, _FIRST, _into_memory(self.memory))


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
class SavedCursor(CountCursor):
    """Saved elements in order."""

    def __init__(self, contents: Contents) -> None:
        super().__init__(contents.manifest.rows)
        self._contents = contents
        self._columns: Sequence[Column] | None = None

    def between(self, begin: int, end: int) -> Handles:
        if begin == end:
            return []
        self._columns = self._columns or self._contents.columns()
        found = [column.between(begin, end) for column in self._columns]
        return [self._contents.tree.unflatten(row) for row in zip(*found, strict=True)]


@dataclass(frozen=True, eq=False)
class FileCache(SelectionOfElements):
    """The elements of the first complete pass, kept in a folder; later passes read them.

    `part` names the part of the data that the folder belongs to. Handles are the same in all
    passes, so that a position of one pass is valid in another.
    """

    filename: str
    part: tuple[int | str, ...] = ()

    def with_own_cache(self, *part: int | str) -> Node:
        return replace(self, part=(*self.part, *part))

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
        if (kept := self.kept) is not None:
            return SavedCursor(kept.contents)
        # As in `Cache`, every pass has the path of the first.
        return FillingCursor(self.input, (0,) * len(path), _into_folder(self.folder))


@final
class FillingCursor(Cursor):
    """Reads the input and keeps what it gives; without an error, its end completes the cache.

    `keep` gets elements and whether they are the last, and returns what is given on.
    """

    def __init__(
        self, node: Node, path: Path, keep: Callable[[list[Any], bool], list[Any]]
    ) -> None:
        self._source = open_elements(node, path)
        self._keep = keep
        self._sound = True  # no error has occurred
        self._taken = 0

    def read(self, count: int) -> Handles:
        sound, self._sound = self._sound, False
        found = list(self._source.read(count))
        at_end = len(found) < count
        if sound:
            found = self._keep(found, at_end)
        self._taken += len(found)
        self._sound = sound and not at_end
        return found

    def get_state(self) -> Any:
        return self._taken

    def set_state(self, state: Any) -> None:
        self.skip(state)


def _into_memory(memory: Memory) -> Callable[[list[Any], bool], list[Any]]:
    kept: list[Any] = []

    def keep(elements: list[Any], at_end: bool) -> list[Any]:
        found = [read_only(element) for element in elements]
        kept.extend(found)
        if at_end:
            memory.elements = kept
        return found

    return keep


def _into_folder(folder: str) -> Callable[[list[Any], bool], list[Any]]:
    writer: Writer | None = None

    def keep(elements: list[Any], at_end: bool) -> list[Any]:
        nonlocal writer
        writer = writer or Writer(folder)
        for element in elements:
            writer.append(element)
        if at_end:
            writer.finish(replace=False)
        return elements

    return keep
