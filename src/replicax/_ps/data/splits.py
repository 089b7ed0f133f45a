"""`Splits`: workers share an epoch out as they go, and each batch is given to one closure.

An epoch is cut into splits, whose batches are read in a row. A worker goes on in the split that it
has open; without one it opens the next that waits, or takes over half of another worker's rest. So
nobody waits for anybody, and no death needs to be announced: a closure keeps the batches that it
was given, wherever it finally runs.

There are three ways to divide a data set; the best that it allows is taken. *runs*: the number of
batches is known, and a reader can go to any of them without making the earlier ones; a split is a
run of batches, which a worker can read ahead. *files*: each split is some of the files, with
batches of its own. *in turn*: only reading shows what there is; every worker reads everything, and
computes with the batches that it was given.
"""

from __future__ import annotations

import dataclasses
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, final

import jax
import numpy as np

from replicax._core.errors import ClosureInputError, UsageError
from replicax._input.dataset import DistributedDataset
from replicax._input.source import ExternalSource, GeneratorSource, as_dataset
from replicax._ps.queue.lanes import ComesLater
from replicax._ps.queue.remote_value import RemoteValueStatus
from replicax.data import UNKNOWN_CARDINALITY, AutoShardPolicy, Dataset, Options
from replicax.data._iterators import outline
from replicax.data._node import Feed, drawn_seeds
from replicax.data._nodes.ahead import read_ahead
from replicax.data._nodes.map import Map
from replicax.data._nodes.share import files_of, run_of, with_file_shard
from replicax.data._nodes.sources import Generated
from replicax.data._nodes.workers import in_this_process
from replicax.data._spec import own_copy

if TYPE_CHECKING:
    from replicax._ps.queue.closures import Closure
    from replicax.data._node import Node

_PAUSE = 0.05  # seconds that a closure waits for the last ones before it frees its worker

_AHEAD = 2  # batches that a thread reads ahead
_SPLITS = 4  # splits for each worker; a late or quick one takes over halves
_PARTS = 16  # splits of files for each worker
_ENDLESS = 16  # batches in a split of data without end


class Place(NamedTuple):
    """Where a closure finds its batch: its part of the data (0 if there is one), and number in it.

    The split ends before `stop`, if that is known. `keep` are parts and numbers of batches that the
    worker has been given, too, and may ask for in another order.
    """

    part: int
    number: int
    stop: int | None
    keep: tuple[tuple[int, int], ...] = ()


@final
@dataclass
class _Split:
    """The batches of one part from the next one to be given to the one before `stop`."""

    part: int
    next: int
    stop: int | None


@final
@dataclass
class _Given:
    """The places given to a closure that has not ended, by the numbers of its batches."""

    closure: Closure
    worker: int
    places: dict[int, Place] = field(default_factory=dict)


@final
class Splits:
    """The batches of one epoch, given to closures; for many threads.

    `waiting` splits are (part, first batch, batch after the last); the last is None if the end of
    the part is unknown until it is read. `further` splits, of one part without a known end, are
    given by where they begin, and how many batches each has.
    """

    def __init__(
        self, waiting: Iterable[Sequence[Any]] = (), *, further: Sequence[int] | None = None
    ) -> None:
        self._changed = threading.Condition()
        self._waiting = deque(_Split(*split) for split in waiting)
        self._further = further
        self._open: dict[int, _Split] = {}
        self._given: dict[int, _Given] = {}
        self._computed: list[Closure] = []  # their results may not be known yet
        self._ends: dict[int, int] = {}

    def give(self, closure: Closure, number: int, worker: int) -> Place | None:
        """The place of a closure's batch; the same place again if it was given one before.

        None if all batches of the epoch have been computed with; `ComesLater` if all have been
        given, and some might have to be given again. `number` is which of its batches.
        """
        with self._changed:
            mine = self._given.setdefault(closure.id, _Given(closure, worker))
            mine.worker = worker
            if number not in mine.places:
                for over in [g for g in self._given.values() if not _is_open(g.closure)]:
                    self._release(over.closure)  # it was cancelled
                place = self._next(worker)
                if place is None:
                    self._release(closure)
                    if not self._is_under_way():
                        return None
                    self._changed.wait(_PAUSE)
                    raise ComesLater
                mine.places[number] = place
            return mine.places[number]._replace(keep=self._others(mine))

    def ended(self, closure: Closure, number: int, length: int) -> None:
        """Note that a place lies behind the end of its part, which has at most `length` batches."""
        with self._changed:
            part = self._given[closure.id].places.pop(number).part
            self._ends[part] = min(length, self._ends.get(part, length))

    def release(self, closure: Closure) -> None:
        """Free the batches given to a closure that has not begun to compute."""
        with self._changed:
            self._release(closure)

    def finish(self, closure: Closure) -> None:
        """Note that a closure has ended, well or not."""
        with self._changed:
            self._given.pop(closure.id, None)
            self._computed = [*filter(_is_open, self._computed), closure]
            self._changed.notify_all()

    def get_state(self) -> dict[str, Any]:
        """The rest of the epoch as plain data; closures that have not ended count as not begun."""
        with self._changed:
            given = [place for given in self._given.values() for place in given.places.values()]
            begun = {id(split): split for split in self._open.values()}.values()
            left = [*begun, *self._waiting]
            return {
                "left": [[p.part, p.number, p.number + 1] for p in given]
                + [[s.part, s.next, s.stop] for s in left if self._has_more(s)],
                "further": self._further,
            }

    def _release(self, closure: Closure) -> None:
        given = self._given.pop(closure.id, None)
        if given is not None:
            places = sorted(given.places.values())
            self._waiting.extendleft(_Split(p.part, p.number, p.number + 1) for p in places[::-1])

    def _is_under_way(self) -> bool:
        """Whether the end would come too soon: as an error it cancels results that are pending."""
        given = any(given.places for given in self._given.values())
        return given or any(map(_is_open, self._computed))

    def _others(self, mine: _Given) -> tuple[tuple[int, int], ...]:
        return tuple(
            (place.part, place.number)
            for given in self._given.values()
            if given is not mine and given.worker == mine.worker
            for place in given.places.values()
        )

    def _next(self, worker: int) -> Place | None:
        split = self._split_of(worker)
        if split is None:
            return None
        split.next += 1
        return Place(split.part, split.next - 1, split.stop)

    def _split_of(self, worker: int) -> _Split | None:
        """The worker's open split, if it has batches left."""
        split = self._open.pop(worker, None)
        while split is None or not self._has_more(split):
            if self._waiting:
                split = self._waiting.popleft()
            elif self._further is not None:
                start, size = self._further
                split = _Split(0, start, start + size)
                self._further = (start + size, size) if self._has_more(split) else None
            else:
                split = self._taken_over()
                break
        if split is not None:
            self._open[worker] = split
        return split

    def _taken_over(self) -> _Split | None:
        """Half of the largest rest of another worker; all of it, shared, if it has no end."""
        others = [split for split in self._open.values() if self._has_more(split)]
        if not others:
            return None
        endless = [split for split in others if self._end_of(split) is None]
        if endless:
            return min(endless, key=lambda split: split.next)  # the shortest way to skip to it
        rests = [(end - split.next, split) for split in others if (end := self._end_of(split))]
        rest, split = max(rests, key=lambda pair: pair[0])
        end = split.next + rest
        split.stop = end - (rest + 1) // 2
        return _Split(split.part, split.stop, end)

    def _end_of(self, split: _Split) -> int | None:
        ends = [end for end in (split.stop, self._ends.get(split.part)) if end is not None]
        return min(ends, default=None)

    def _has_more(self, split: _Split) -> bool:
        end = self._end_of(split)
        return end is None or split.next < end


def _is_open(closure: Closure) -> bool:
    return closure.value.state is RemoteValueStatus.NOT_READY


@final
@dataclass(frozen=True)
class Division:
    """The division of a data set, by "runs", "files" or "turn"; the same for all workers.

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
        by_files = asked is AutoShardPolicy.FILE
        if not by_files and count != UNKNOWN_CARDINALITY and run_of(node, 0, 1) is not None:
            by = "runs"  # any batch can be reached without making the earlier ones
        elif asked in (AutoShardPolicy.FILE, AutoShardPolicy.AUTO) and len(files) >= workers:
            by, parts = "files", min(num_splits or _PARTS * workers, len(files))
        known = count if count >= 0 and parts == 1 and by in ("runs", "turn") else None
        return cls(by, parts, known, tuple(drawn_seeds(node)), outline(dataset.node))

    def splits(self, num_splits: int | None, workers: int) -> Splits:
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
                f"Cannot resume {self.pipeline} by {self.by} in {self.parts} parts from a position "
                f"of {theirs[0]} by {theirs[1]} in {theirs[2]} parts. Make the same data set with "
                "the same `num_splits`, or begin a new epoch."
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
                f"The shared data set differs: {outline(dataset.node)} of {count} elements on "
                f"worker {worker}, {self.pipeline} of {self.count} on the coordinator. Let the "
                "function make the same data set everywhere."
            )
        dataset.epochs.reseed(dict(zip(mine, self.seeds, strict=True)))
        return _in_order(dataset)

    def batches(
        self, node: Node, epoch: int, place: Place
    ) -> tuple[int, int | None, Iterator[Any]]:
        """Batches of a part from a place to the end of its split, read ahead by a thread.

        Returns the number of the first batch, the number after the last, and the batches.
        """
        if self.by == "files":
            node = with_file_shard(node, self.parts, place.part)
        end = place.stop if self.by == "runs" else None
        found = run_of(node, place.number, end)
        return place.number if found else 0, end, read(found or node, epoch)


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
        if not _has(dataset.node, (Generated, ExternalSource, GeneratorSource)):
            return dataset
        what = "one made by a generator, or by another library"
    else:
        what = f"data of the type {type(made).__name__!r}"
    raise UsageError(
        f'Cannot share {what} with shard="dynamic": its order may differ between workers. Pass an '
        '`rx.data.Dataset` of arrays, files or `range`, a list of batches, or shard="off".'
    )


def _has(node: Node, kinds: tuple[type, ...]) -> bool:
    return isinstance(node, kinds) or any(_has(inner, kinds) for inner in node.inputs)


def _in_order(dataset: Dataset) -> Node:
    """The pipeline as it is read, without options that could change the order of its elements."""
    ordered = Options()
    ordered.deterministic = True
    node = in_this_process(dataset.with_options(ordered).prepared())
    return node.rewritten(_ordered)


def _ordered(node: Any) -> Node:
    unordered = isinstance(node, Map) and node.ordered is False
    return dataclasses.replace(node, ordered=True) if unordered else node
