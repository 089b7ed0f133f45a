"""One worker's share of every batch, cut into pieces for its replicas."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import jax
import numpy as np

from replicax._core.digests import checksum, sample_checksum
from replicax._core.errors import UnbatchedInput, UsageError
from replicax._input.policy import split_batch, worker_batch_sizes
from replicax._input.source import check_batch, check_structure, has_scalars
from replicax.data import AutoShardPolicy
from replicax.data._node import Feed, Node, OneByOne, Path
from replicax.data._nodes.lazy_batch import LazyBatch, ends_of, in_parts
from replicax.data._nodes.share import with_file_shard, with_hinted_shard
from replicax.data._spec import ArraySpec, RowBuffer, joined, parts_of, rows_of


@dataclass(frozen=True, eq=False)
class WorkerBatch:
    """One worker's rows of one step."""

    pieces: tuple[Any, ...]  # a nest of host arrays for each of its replicas; may have no rows
    whole: Any = None  # the nest from which the pieces were cut, if there is one
    digest: str = ""  # a checksum of the global batch, if all workers must read the same batch
    # The sizes and checksums of this batch and the batches that are known together with it. Empty
    # if an earlier batch announced this one; None if this batch is known alone.
    announced: tuple[tuple[list[int], str], ...] | None = None

    @property
    def announcements(self) -> Sequence[tuple[list[int], str]]:
        """The sizes and checksums to announce to the other workers with this batch."""
        return [(self.sizes, self.digest)] if self.announced is None else self.announced

    @functools.cached_property
    def sizes(self) -> list[int]:
        """The number of rows of each piece."""
        return [_rows(piece) for piece in self.pieces]

    def batch(self) -> Any:
        """All rows as one nest."""
        return joined(self.pieces) if self.whole is None else self.whole

    def without_rows(self) -> WorkerBatch:
        """An equal batch without rows, for a step in which only other workers have rows."""
        empty = rows_of(self.pieces[0], 0, 0)
        return WorkerBatch((empty,) * len(self.pieces), empty)


def cut(batch: Any, sizes: Sequence[int], **checks: Any) -> WorkerBatch:
    """Cut a nest along its first axis into pieces of these sizes."""
    pieces, start = [], 0
    for rows in sizes:
        pieces.append(rows_of(batch, start, start + rows))
        start += rows
    return WorkerBatch(tuple(pieces), batch, **checks)


@final
class ShardedCursor(OneByOne):
    """Reads global batches and yields worker batches; left-over rows wait for the next one."""

    def __init__(self, node: ShardedSource, path: Path) -> None:
        self._node = node
        self._path = path
        self._by = node.policy  # a restored position keeps the policy that divided its streams
        self._streams = deque(self._open(*stream, None) for stream in node.streams)
        self._rows = RowBuffer()
        self._turn = 0
        self._number = 0  # of batches read
        self._announced = 0  # batches to come that an earlier batch announced
        self._structure: Any = None

    def _open(self, of: int, index: int, state: Any) -> tuple[int, int, Feed]:
        feed = Feed(self._node.stream(self._by, of, index), self._path)
        if state is not None:
            feed.set_state(state)
        return of, index, feed

    def make(self) -> Any:
        if self._node.policy is AutoShardPolicy.DATA:
            return self._part_of_batch()
        if self._node.input.batch_size is None:
            return self._pieces_in_turn()
        return self._planned(self._node.input.batch_size)

    def _part_of_batch(self) -> WorkerBatch:
        """The pieces of this worker's replicas; the rows of other workers are dropped."""
        node = self._node
        if self._rows.rows:  # left over by another policy, before a restored position
            batch = self._rows.pull(node.input.batch_size or self._rows.rows)
        else:
            batch = self._next_batch()
        if batch is None:
            raise StopIteration
        mine, start = self._mine(batch)
        part = batch.rows if isinstance(batch, LazyBatch) else functools.partial(rows_of, batch)
        rows = part(start, start + sum(mine))
        if node.workers == 1:
            return cut(rows, mine)
        if isinstance(batch, LazyBatch):
            return cut(rows, mine, announced=tuple(self._announcements(batch)))
        digest = checksum if self._number == 1 else sample_checksum
        return cut(rows, mine, digest=digest(batch))

    def _mine(self, batch: Any) -> tuple[list[int], int]:
        """The number of rows of each replica of this worker, and the first row."""
        node = self._node
        sizes = split_batch(_rows(batch), node.workers * node.replicas)
        first = node.worker * node.replicas
        return sizes[first : first + node.replicas], sum(sizes[:first])

    def _announcements(self, batch: LazyBatch) -> Iterator[tuple[list[int], str]]:
        """Sizes and checksums of all batches that are known together; the first announces all.

        The checksums equal the checksums of batches that were fetched whole.
        """
        if self._announced:
            self._announced -= 1
            return
        batches = batch.with_those_behind()
        self._announced = len(batches) - 1
        for place, (one, ends) in enumerate(zip(batches, ends_of(batches), strict=True)):
            rows, is_first = len(one), place == 0 and self._number == 1
            digest = checksum(one.rows(0, rows)) if is_first else sample_checksum(ends, rows)
            yield self._mine(one)[0], digest

    def _planned(self, global_batch_size: int) -> WorkerBatch:
        """Pieces of fixed sizes, cut across the batches that were read."""
        node = self._node
        plan = worker_batch_sizes(global_batch_size, node.workers, node.replicas, node.worker)
        start = self._turn * node.replicas % len(plan)
        sizes = plan[start : start + node.replicas]
        self._fill(max(1, sum(sizes)))
        if not self._rows.rows:
            raise StopIteration
        self._turn += 1
        return _cut_available(self._rows.pull(sum(sizes)), sizes)

    def _pieces_in_turn(self) -> WorkerBatch:
        """Every batch cut for all replicas of all workers; this worker takes all pieces."""
        node = self._node
        if not self._rows.rows:
            self._turn = 0
            self._fill(1)
        left = self._rows.rows
        if not left:
            raise StopIteration
        # All pieces of a batch are as large as its first pieces, until the rows run out.
        size = self._turn or -(-left // (node.workers * node.replicas))
        self._turn = size
        batch = self._rows.pull(size * node.replicas)
        return _cut_available(batch, [size] * node.replicas)

    def _fill(self, rows: int) -> None:
        while self._rows.rows < rows:
            batch = self._next_batch()
            if batch is None:
                return
            if _rows(batch):
                self._rows.push(batch)

    def _next_batch(self) -> Any:
        while self._streams:
            for batch in self._streams[0][2].elements(1):
                if not isinstance(batch, LazyBatch):  # rows of arrays in memory are all alike
                    self._structure = check_batch(batch, self._number, self._structure)
                self._number += 1
                return batch
            self._streams.popleft()
        return None

    def get_state(self) -> Any:
        streams = [(of, index, feed.get_state()) for of, index, feed in self._streams]
        return {
            "divided": self._node.is_divided,
            "by": self._by.name,
            "streams": streams,
            "left": self._rows.contents(),
            "turn": self._turn,
        }

    def set_state(self, state: Any) -> None:
        self._by = AutoShardPolicy[state["by"]]
        self._streams = deque(self._open(*stream) for stream in state["streams"])
        self._rows, self._turn = RowBuffer(state["left"]), state["turn"]


@dataclass(frozen=True, eq=False)
class ShardedSource(Node):
    """The batches of one of `workers` workers, each with `replicas` replicas.

    `input` yields global batches; the policy is not AUTO.
    """

    cursor = ShardedCursor
    input: Node
    policy: AutoShardPolicy
    workers: int
    worker: int
    replicas: int

    @property
    def cardinality(self) -> int:
        size, one_by_one = self.input.cardinality, self.policy is AutoShardPolicy.DATA
        return size if one_by_one or size <= 0 else -2

    @property
    def spec(self) -> Any:
        return self.input.spec

    def over(self, nodes: Sequence[Node]) -> ShardedSource:
        """A copy that reads another node."""
        (node,) = nodes
        return replace(self, input=node)

    @property
    def full(self) -> tuple[Sequence[int], Sequence[int]] | None:
        """The rows of this worker's and of all replicas in a full step; None if unknown."""
        size, count = self.input.batch_size, self.workers * self.replicas
        if size is None:
            return None
        is_cut = self.policy is AutoShardPolicy.DATA
        sizes = split_batch(size, count) if is_cut else worker_batch_sizes(size, count, 1, 0)
        first = self.worker * self.replicas
        return sizes[first : first + self.replicas], sizes

    @property
    def is_divided(self) -> bool:
        """Whether each worker reads its own part of the data; else all workers read all data."""
        return self.policy in (AutoShardPolicy.FILE, AutoShardPolicy.HINT)

    @property
    def streams(self) -> tuple[tuple[int, int], ...]:
        """The parts that this worker reads in an epoch, as pairs (number of parts, part)."""
        return ((self.workers, self.worker),) if self.is_divided else ((1, 0),)

    def stream(self, by: AutoShardPolicy, of: int, index: int) -> Node:
        """The pipeline over part `index` of `of` parts, divided by the policy `by`."""
        if of == 1:
            return in_parts(self.input) if self.policy is AutoShardPolicy.DATA else self.input
        shard = with_file_shard if by is AutoShardPolicy.FILE else with_hinted_shard
        return shard(self.input, of, index)


def _rows(batch: Any) -> int:
    if isinstance(batch, LazyBatch):
        return len(batch)
    leaves = parts_of(batch)
    return leaves[0].shape[0] if leaves else 0


def _cut_available(batch: Any, sizes: Sequence[int]) -> WorkerBatch:
    """Cut pieces of these sizes until the rows run out; the last pieces may be smaller or empty."""
    left, found = _rows(batch), []
    for size in sizes:
        found.append(min(size, left))
        left -= found[-1]
    return cut(batch, found)


def single_worker_position(position: Any) -> Any:
    """The position of a single worker, from the position of an iterator of `rx.data`."""
    streams = [(1, 0, position)]
    by = AutoShardPolicy.OFF.name
    return {"divided": False, "by": by, "streams": streams, "left": [], "turn": 0}


def redistributed(states: Sequence[Any], now: ShardedSource) -> Any:
    """The position of a worker, from the positions of another number of workers or policy.

    The streams that are left are distributed again, whole, or go to all workers if all now read all
    data. No row is lost or repeated; the rest of this epoch may be uneven.
    """
    if not states[0]["divided"]:
        states = states[:1]  # all positions are equal
    streams = [stream for state in states for stream in state["streams"]]
    left = [batch for state in states for batch in state["left"]]
    if now.is_divided:
        streams, left = streams[now.worker :: now.workers], left[now.worker :: now.workers]
    return {**states[0], "streams": streams, "left": left, "turn": 0}


@final
class PerReplicaCursor(OneByOne):
    """One batch per replica; a replica whose data has ended gets batches without rows."""

    def __init__(self, node: PerReplicaSource, path: Path) -> None:
        self._replicas = node.replicas
        self._feeds = [Feed(inner, path) for inner in node.nodes]
        self._number = 0
        self._structure: Any = None

    def make(self) -> Any:
        pieces = [self._next(replica) for replica in range(self._replicas)]
        given = [piece for piece in pieces if piece is not None]
        if not given:
            raise StopIteration
        if len(given) < len(pieces):
            empty = _without_rows(given[0], len(given), len(pieces))
            pieces = [empty if piece is None else piece for piece in pieces]
        return WorkerBatch(tuple(pieces))

    def _next(self, replica: int) -> Any:
        for batch in self._feeds[replica % len(self._feeds)].elements(1):
            check = check_structure if has_scalars(batch) else check_batch
            self._structure = check(batch, self._number, self._structure)
            self._number += 1
            # A copy: if a loader reuses its buffer, every replica would get the last batch.
            return jax.tree.map(np.array, batch)
        return None

    def get_state(self) -> Any:
        return [feed.get_state() for feed in self._feeds]

    def set_state(self, state: Any) -> None:
        for feed, inner in zip(self._feeds, state, strict=True):
            feed.set_state(inner)


@dataclass(frozen=True, eq=False)
class PerReplicaSource(Node):
    """Per-replica batches of `distribute_datasets_from_function`.

    There is one node for each replica, or one node whose batches go to the replicas in turn.
    """

    cursor = PerReplicaCursor
    nodes: tuple[Node, ...]
    replicas: int

    def over(self, nodes: Sequence[Node]) -> PerReplicaSource:
        """A copy that reads other nodes."""
        return replace(self, nodes=tuple(nodes))

    @property
    def cardinality(self) -> int:
        return -2

    @property
    def spec(self) -> Any:
        return self.nodes[0].spec

    @property
    def full(self) -> tuple[Sequence[int], Sequence[int]] | None:
        """The rows of the replicas in a full step, twice as in `ShardedSource.full`; None if they
        may differ."""
        sizes = [self.nodes[i % len(self.nodes)].batch_size for i in range(self.replicas)]
        known = [size for size in sizes if size == sizes[0] and size is not None]
        return (known, known) if len(known) == self.replicas else None


def _without_rows(batch: Any, given: int, replicas: int) -> Any:
    """An equal batch without rows, for a replica whose data has ended."""
    if has_scalars(batch):
        raise UnbatchedInput(
            f"The last step has {given} single elements for {replicas} replicas. Call `batch`, or "
            "`take` a multiple of the replicas."
        )
    return rows_of(batch, 0, 0)


def zero_batch(node: Any, sizes: Sequence[int]) -> WorkerBatch:
    """A batch of zeros from the spec of a data set, with `sizes` rows for the replicas."""
    specs = jax.tree.leaves(node.spec)
    if any(type(spec) is not ArraySpec or None in (spec.shape or ())[1:] for spec in specs):
        raise UsageError(
            f"The shapes {[spec.shape for spec in specs]} may vary between batches, so no batch is "
            "known before it is read. Pad rows to one length with `padded_batch(padded_shapes=…)`."
        )

    def zeros(spec: Any) -> np.ndarray:
        return np.zeros((sum(sizes), *(spec.shape or (0,))[1:]), spec.dtype)

    return cut(jax.tree.map(zeros, node.spec), sizes)
