"""Whole descriptions rewritten: options applied, files and hints divided; seeds are in `_seeds`."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from replicax.data._node import Feed
from replicax.data._nodes.files import FileList, FileRecords
from replicax.data._nodes.flat import Interleave
from replicax.data._nodes.map import Map
from replicax.data._nodes.select import Shard, ShardHint
from replicax.data._options import AUTOTUNE, Options
from replicax.data._seeds import apart, rewritten

if TYPE_CHECKING:
    from replicax.data._node import Node


def prepared(node: Node, options: Options) -> Node:
    """`node` with the options for parallel functions applied."""
    threads = options.threading.private_threadpool_size

    def change(inner: Node) -> Node:
        if not isinstance(inner, Map):
            return inner
        ordered = options.deterministic is not False if inner.ordered is None else inner.ordered
        calls = threads if threads and inner.calls == AUTOTUNE else inner.calls
        if (ordered, calls) == (inner.ordered, inner.calls):
            return inner
        return dataclasses.replace(inner, ordered=ordered, calls=calls)

    return rewritten(node, change)


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
        return apart(inner, "files", num, index)

    return rewritten(node, change)


def has_hint(node: Node) -> bool:
    """Whether there is a `shard(SHARD_HINT, SHARD_HINT)` in a pipeline."""
    return isinstance(node, ShardHint) or any(has_hint(inner) for inner in node.inputs)


def with_hinted_shard(node: Node, num: int, index: int) -> Node:
    """`node` with its `shard(SHARD_HINT, SHARD_HINT)` filled in."""

    def change(inner: Node) -> Node:
        if isinstance(inner, ShardHint):
            return Shard(inner.input, num, index)
        return apart(inner, "hint", num, index)

    return rewritten(node, change)
