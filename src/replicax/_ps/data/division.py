"""How workers divide a data set that they share, and the batches of a part of it.

There are three ways; the best that the data set allows is taken. *runs*: the number of batches is
known, and a reader can go to any of them without making the earlier ones; a split is a run of
batches, which a worker can read ahead. *files*: each split is some of the files, with batches of
its own. *in turn*: only reading shows what there is; every worker reads everything, and computes
with the batches that it was given.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import jax
import numpy as np

from replicax._core.errors import ClosureInputError, UsageError
from replicax._input.dataset import DistributedDataset
from replicax._input.source import Foreign, Once, as_dataset
from replicax._ps.data.splits import Splits
from replicax.data import UNKNOWN_CARDINALITY, AutoShardPolicy, Dataset, Options
from replicax.data._node import Feed
from replicax.data._nodes.ahead import read_ahead
from replicax.data._nodes.map import Map
from replicax.data._nodes.share import run_of
from replicax.data._nodes.sources import Generated
from replicax.data._nodes.workers import in_this_process
from replicax.data._position import outline
from replicax.data._rewrite import files_of, with_file_shard
from replicax.data._seeds import drawn_seeds, rewritten
from replicax.data._spec import own_copy

if TYPE_CHECKING:
    from replicax.data._node import Node

_AHEAD = 2  # batches that a thread reads ahead
_SPLITS = 4  # splits for each worker; a late or quick one takes over halves
_PARTS = 16  # splits of files for each worker
_ENDLESS = 16  # batches in a split of data without end


@final
@dataclass(frozen=True)
class Division:
    """How a data set is divided, by "runs", "files" or "turn"; the same for all workers.

    Batches are counted within each of the `parts`; an epoch has `count` in all, if that is known.
    The seeds are those that the coordinator has drawn.
    """

    by: str
    parts: int
    count: int | None
    seeds: tuple[int, ...]
    pipeline: str

    @classmethod
    def of(cls, dataset: Dataset, *, num_splits: int | None, workers: int) -> Division:
        """Divide a data set from `divisible` into this many splits; None chooses the number."""
        node = _in_order(dataset)
        asked = dataset.options().experimental_distribute.auto_shard_policy
        files, count = files_of(node), node.cardinality
        by, parts = "turn", 1
        if asked is not AutoShardPolicy.FILE and count != UNKNOWN_CARDINALITY and _is_quick(node):
            by = "runs"
        elif asked in (AutoShardPolicy.FILE, AutoShardPolicy.AUTO) and len(files) >= workers:
            by, parts = "files", min(num_splits or _PARTS * workers, len(files))
        known = count if count >= 0 and parts == 1 and by in ("runs", "turn") else None
        return cls(by, parts, known, tuple(drawn_seeds(node)), outline(dataset.node))

    def splits(self, num_splits: int | None, workers: int) -> Splits:
        """The splits of a new epoch."""
        if self.by == "files":
            return Splits((part, 0, None) for part in range(self.parts))
        if self.by == "turn" or self.count is None:
            return Splits(further=(0, 1 if self.by == "turn" else _ENDLESS))
        size = max(1, -(-self.count // (num_splits or _SPLITS * workers)))
        starts = range(0, self.count, size)
        return Splits((0, start, min(start + size, self.count or 0)) for start in starts)

    def described(self) -> dict[str, Any]:
        """The division as part of a position."""
        return {"by": self.by, "parts": self.parts, "seeds": list(self.seeds), "of": self.pipeline}

    def resumed(self, state: Mapping[str, Any]) -> Division:
        """The division of a position, with its random orders."""
        theirs = state.get("of"), state.get("by"), state.get("parts")
        if theirs != (self.pipeline, self.by, self.parts):
            raise UsageError(
                "What was left of an epoch is gone on with on the same data set. Received: "
                f"{theirs[0]} divided by {theirs[1]} into {theirs[2]}, for {self.pipeline} by "
                f"{self.by} into {self.parts}. The numbers of its batches would mean other "
                "examples. Make the same data set, with the same `num_splits`, or begin an epoch."
            )
        return dataclasses.replace(self, seeds=tuple(state["seeds"]))

    def agreed(self, dataset: Dataset, worker: int) -> Node:
        """The pipeline as a worker reads it, in the order that all workers share."""
        node = _in_order(dataset)
        mine = drawn_seeds(node)
        count = node.cardinality
        same = outline(dataset.node) == self.pipeline and len(mine) == len(self.seeds)
        if not same or self.count not in (None, count):
            raise ClosureInputError(
                "A data set that workers share is the same on all of them. Received: "
                f"{outline(dataset.node)} of {count} elements on worker {worker}, and "
                f"{self.pipeline} of {self.count} on the coordinator. The numbers of its batches "
                "would mean other examples. Let the function make the same data set everywhere."
            )
        dataset.epochs.reseed(dict(zip(mine, self.seeds, strict=True)))
        return _in_order(dataset)

    def batches(
        self, node: Node, epoch: int, *, part: int, start: int, stop: int | None
    ) -> tuple[int, int | None, Iterator[Any]]:
        """Batches of a part, from `start` to before `stop`, read ahead by a thread.

        Returns the number of the first batch that comes, the number behind the last, and the
        batches.
        """
        if self.by == "files":
            node = with_file_shard(node, self.parts, part)
        end = stop if self.by == "runs" else None
        found = run_of(node, start, end)
        return start if found else 0, end, read(found or node, epoch)


def read(node: Node, epoch: int) -> Iterator[Any]:
    """The elements of one pass, in memory of their own, read ahead by a thread."""
    feed = Feed(node, (epoch,))

    def make() -> Any:
        for batch in feed.elements(1):
            return own_copy(batch)
        raise StopIteration

    return read_ahead(make, _AHEAD)


def whole(made: Any) -> Dataset:
    """The data that a user gives workers to read, in whole batches: a worker is one replica."""
    return as_dataset(made.sources[0] if isinstance(made, DistributedDataset) else made)


def divisible(made: Any) -> Dataset:
    """The data that a user shares out, as a data set that all workers read in one order."""
    if isinstance(made, list | tuple | Mapping | np.ndarray | jax.Array):
        return as_dataset(made)
    if isinstance(made, Dataset | DistributedDataset):
        dataset = whole(made)
        if not _has(dataset.node, (Generated, Foreign, Once)):
            return dataset
        what = "one made by a generator, or by another library"
    else:
        what = f"a {type(made).__name__}"
    raise UsageError(
        'With shard="dynamic" workers share a data set that each of them can read in the same '
        f"order. Received: {what}. What it yields is known by running it only, and may be "
        "something else on each worker. Pass an `rx.data.Dataset` of arrays, files or `range`, a "
        'list of batches, or shard="off".'
    )


def _is_quick(node: Node) -> bool:
    """Whether any element can be reached without making the earlier ones."""
    return run_of(node, 0, 1) is not None


def _has(node: Node, kinds: tuple[type, ...]) -> bool:
    return isinstance(node, kinds) or any(_has(inner, kinds) for inner in node.inputs)


def _in_order(dataset: Dataset) -> Node:
    """The pipeline as it is read, without options that could change the order of its elements."""
    ordered = Options()
    ordered.deterministic = True
    node = in_this_process(dataset.with_options(ordered).prepared())
    return rewritten(node, _ordered)


def _ordered(node: Any) -> Node:
    unordered = isinstance(node, Map) and node.ordered is False
    return dataclasses.replace(node, ordered=True) if unordered else node
