"""The share of a worker: of elements, of files, or where the data set says `SHARD_HINT`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from replicax.data._node import Feed
from replicax.data._nodes.ahead import Prefetch
from replicax.data._nodes.batch import Grouped
from replicax.data._nodes.files import FileList, FileRecords
from replicax.data._nodes.map import Map, call
from replicax.data._nodes.mix import Interleave, Zip
from replicax.data._nodes.select import Shard, ShardHint, Skip, Take
from replicax.data._nodes.sources import Range

if TYPE_CHECKING:
    from replicax.data._node import Node


_PAIR = jax.tree.structure((0, 0))
_NUMBERS = Range(0, 1, None, np.dtype(np.int64))


@dataclass(frozen=True)
class Share:
    """After the first `offset` elements, the block at `index` of every `num` blocks."""

    offset: int
    num: int
    index: int
    block: int = 1

    def of(self, node: Node) -> Node:
        """This share of the elements of `node`, all of which are made."""
        behind = Skip(node, self.offset) if self.offset else node
        return Shard(behind, self.num, self.index, self.block) if self.num > 1 else behind

    def of_groups(self, size: int) -> Share:
        """The share of elements that make up this share of groups of `size`."""
        return Share(self.offset * size, self.num, self.index, self.block * size)

    def count(self, total: int) -> int:
        """How many of `total` elements are in this share."""
        return self.of(dataclasses.replace(_NUMBERS, size=total)).cardinality


def shared(node: Node, share: Share) -> Node:
    """A share of the elements of `node`; functions are called for this share only.

    A step that makes one element of one, or of a group, runs for the share alone. A step that needs
    the other elements (`filter`, `flat_map`, a shuffle buffer, the reading of a file) runs for all
    of them.
    """
    if share == Share(0, 1, 0):
        return node
    match node:
        case Map():
            numbers, elements = share.of(_NUMBERS), shared(node.input, share)
            numbered = Zip((numbers, elements), _PAIR)
            return dataclasses.replace(node, input=numbered, fn=Numbered(node.fn))
        case Grouped():
            rows = shared(node.input, share.of_groups(node.size))
            return dataclasses.replace(node, input=rows)
        case Prefetch() | ShardHint():
            return dataclasses.replace(node, input=shared(node.input, share))
        case Zip():
            return dataclasses.replace(node, nodes=tuple(shared(n, share) for n in node.nodes))
        case Take() if node.count >= 0:
            return Take(shared(node.input, share), share.count(node.count))
        case Skip() if node.count >= 0:
            further = dataclasses.replace(share, offset=share.offset + node.count)
            return shared(node.input, further)
    return share.of(node)


def run_of(node: Node, start: int, stop: int | None) -> Node | None:
    """Elements `start` to `stop` - 1 of a node without worker processes, or to its end.

    None if the elements before `start` would have to be made to get there.
    """
    changes: dict[str, Any] = {}
    match node:
        case Map():
            runs: list[Any] = [run_of(inner, start, stop) for inner in (_NUMBERS, node.input)]
            changes = {"input": runs[1] and Zip((runs[0], runs[1]), _PAIR), "fn": Numbered(node.fn)}
        case Grouped():
            end = None if stop is None else stop * node.size
            changes = {"input": run_of(node.input, start * node.size, end)}
        case Prefetch() | ShardHint():
            changes = {"input": run_of(node.input, start, stop)}
        case Take() if node.table is None and node.count >= 0:
            end = node.count if stop is None else min(stop, node.count)
            return run_of(node.input, start, max(start, end))
        case Skip() if node.table is None and node.count >= 0:
            end = None if stop is None else stop + node.count
            return run_of(node.input, start + node.count, end)
        case Zip() if node.table is None:
            runs = [run_of(inner, start, stop) for inner in node.nodes]
            changes = {"nodes": None if None in runs else tuple(runs)}
        case _ if node.table is not None:
            behind = Skip(node, start) if start else node
            return behind if stop is None else Take(behind, stop - start)
    is_found = bool(changes) and all(value is not None for value in changes.values())
    changed: Any = node
    return dataclasses.replace(changed, **changes) if is_found else None


@dataclass(frozen=True)
class Numbered:
    """A function of a `Map`, called with its element's number in the whole data set."""

    fn: Callable[..., Any]

    def __call__(self, number: Any, element: Any) -> Any:
        return call(self.fn, element, int(number))


def files_of(node: Node) -> tuple[str, ...]:
    """The names of all files that a pipeline reads."""
    if isinstance(node, FileList | FileRecords):
        return node.filenames
    found = tuple(name for inner in node.inputs for name in files_of(inner))
    return found or (_files_of_elements(node) if isinstance(node, Interleave) else ())


def _files_of_elements(node: Interleave) -> tuple[str, ...]:
    """The input's elements, if they are names in memory of files that the function reads."""
    source = node.input
    if source.table is None or source.cardinality <= 0:
        return ()
    names = Feed(source, (0,)).elements(source.cardinality)
    if not all(isinstance(name, str) for name in names):
        return ()
    return tuple(names) if names[0] in files_of(node.inner(names[0], 0)) else ()


def with_file_shard(node: Node, num: int, index: int) -> Node:
    """`node` over every `num`-th file, from number `index`."""

    def change(inner: Node) -> Node:
        if isinstance(inner, FileList | FileRecords):
            return dataclasses.replace(inner, filenames=inner.filenames[index::num])
        if isinstance(inner, Interleave) and not files_of(inner.input) and files_of(inner):
            return dataclasses.replace(inner, input=Shard(inner.input, num, index))
        return inner.with_own_cache("files", num, index)

    return node.rewritten(change)


def has_hint(node: Node) -> bool:
    """Whether there is a `shard(SHARD_HINT, SHARD_HINT)` in a pipeline."""
    return isinstance(node, ShardHint) or any(has_hint(inner) for inner in node.inputs)


def with_hinted_shard(node: Node, num: int, index: int) -> Node:
    """`node` with its `shard(SHARD_HINT, SHARD_HINT)` filled in."""

    def change(inner: Node) -> Node:
        if isinstance(inner, ShardHint):
            return Shard(inner.input, num, index)
        return inner.with_own_cache("hint", num, index)

    return node.rewritten(change)
