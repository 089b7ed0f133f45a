"""`DistributedDataset`: batches that come as one piece per replica."""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, final

import jax

from replicax._core.errors import UsageError
from replicax._core.tracing import refuse_to_loop
from replicax._core.values import WorkerRows
from replicax._input.in_step import InStep, Tell
from replicax._input.iterator import DistributedIterator
from replicax._input.sharing import Share, Sharing, blank, read_by_one, redistributed
from replicax._input.source import has_scalars
from replicax.data import AutoShardPolicy
from replicax.data._node import Feed
from replicax.data._nodes.ahead import read_ahead
from replicax.data._nodes.sources import known_before
from replicax.data._spec import own_copy, refuse_composites

if TYPE_CHECKING:
    from replicax._core.options import InputOptions
    from replicax._input.policy import ShardPlan
    from replicax._input.sharing import Dealing
    from replicax.data import Dataset


@final
class DistributedDataset:
    """An iterable of batches, split over the replicas; each `iter` is a new epoch.

    Args:
        sources: The data set of the user; one for each replica, if a function made those.
        shares: Yields this worker's `Share` of each step.
        put: Places the pieces of a batch on the devices, or on the host.
        options: How many batches are placed ahead.
        plan: Who reads what; None if a function of the user makes the batches of each worker.
        tell: Tells all workers a value, and gets theirs later; None if there is one worker.
        name: Of the data set, the same on all workers.
        is_for_workers: Whether this process hands batches out, and computes with none.

    Example:
        >>> import numpy as np
        >>> import replicax as rx
        >>> strategy = rx.MirroredStrategy(["CPU:0", "CPU:1"])
        >>> dataset = strategy.experimental_distribute_dataset([np.arange(9)])
        >>> [v.tolist() for v in next(iter(dataset)).values]
        [[0, 1, 2, 3, 4], [5, 6, 7, 8]]
    """

    def __init__(
        self,
        sources: Sequence[Dataset],
        shares: Sharing | Dealing,
        put: Callable[..., Any],
        options: InputOptions,
        plan: ShardPlan | None = None,
        tell: Tell | None = None,
        name: str = "data set",
        *,
        is_for_workers: bool = False,
    ) -> None:
        self.sources = sources
        self._shares = shares
        self._put = put
        self._plan = plan
        self._tell = tell
        self._name = name
        self._passes = itertools.count()
        self.ahead = options.experimental_per_replica_buffer_size
        self.workers = len(plan.reads) if plan else 1
        self._is_for_workers = is_for_workers
        self._latest: Callable[[], DistributedIterator | None] = lambda: None

    def __iter__(self) -> DistributedIterator:
        refuse_to_loop("loops over a distributed data set")
        if self._is_for_workers:
            raise UsageError(
                "With parameter servers, batches are for closures on workers. Received: a loop "
                "over a distributed data set on the coordinator. To use this dataset, you need to "
                "pass this dataset to ClusterCoordinator.create_per_worker_dataset. Its iterator "
                "is an argument of `schedule`; or pass the data set to `fit`."
            )
        return self.begin()

    def begin(self) -> DistributedIterator:
        """Begin a pass, also where only `fit` may."""
        iterator = DistributedIterator(self)
        self._latest = weakref.ref(iterator)
        return iterator

    @property
    def shares(self) -> Sharing | Dealing:
        """What yields this worker's `Share` of each step."""
        return self._shares.over([source.prepared() for source in self.sources])

    def next_epoch(self) -> int:
        """The number of a new pass."""
        # Of the first alone: data sets of single replicas may count together, if made from one.
        epochs = self.sources[0].epochs
        if self._tell is None:
            return epochs.next()
        # A pass that only some workers made must not put their orders out of step.
        numbers = self._tell(f"{self._name}, epoch", epochs.next()).answers()
        return epochs.next(after=max(numbers))

    def producer(self, feed: Feed, steps: InStep | None) -> Callable[[], tuple[Share, Any]]:
        """A function that makes the next share, for a thread that must not hold the iterator.

        Its rows are placed as if all replicas of all workers had as many.

        Args:
            feed: What is read.
            steps: The steps of the pass, where shares are announced.
        """
        put, next_share = self._put, self._reader(feed, steps)

        def produce() -> tuple[Share, Any]:
            share = next_share()
            fits = steps is None or len(set(share.sizes)) == 1
            return share, put(share.pieces) if fits else None

        return produce

    def steps(self) -> InStep | None:
        """What keeps the workers in step in a new pass; None if there is one worker."""
        if self._tell is None:
            return None
        name = f"{self._name}, pass {next(self._passes)}"
        return InStep(self._tell, name, self._shares, is_same=self._is_same)

    def settled(self, steps: InStep | None, made: tuple[Share, Any] | None) -> Any:
        """The batch of a step, from what this worker has made of it.

        Raises:
            StopIteration: If no worker has any rows left.
        """
        if steps is None:
            if made is None:
                raise StopIteration
            return made[1]
        share, placed = made or (None, None)
        step = steps.next(share)
        if not step.is_even:
            return self._put(step.share.pieces, [rows for one in step.sizes for rows in one])
        return self._put(step.share.pieces) if placed is None else placed

    @property
    def _is_same(self) -> bool:
        shares = self._shares
        return isinstance(shares, Sharing) and shares.policy is AutoShardPolicy.DATA

    def blank(self) -> Any:
        """A batch of zeros as large as a full one, placed where that will be; nothing is taken.

        What `iter` has begun last is read meanwhile.

        Raises:
            UsageError: If the data set does not say how large its batches are.
        """
        full = self._shares.full
        if full is None:
            raise UsageError(
                "What a batch looks like is known before it is there if batches have a size. "
                "Received: a data set that says none, or another one for each replica. A program "
                "is for one size. Make the batches by `batch(n)`."
            )
        mine, sizes = full
        with known_before():
            pieces = blank(self._shares, mine).pieces
        begun = self._latest()
        if begun is not None:
            begun.read_ahead()
        if self._tell is None or len(set(sizes)) == 1:
            return self._put(pieces)
        return self._put(pieces, sizes)

    def host_batches(self) -> Iterator[Any]:
        """One epoch of this worker's batches, not cut, in host memory of their own."""
        return self.rest_of(Feed(self.shares, (self.next_epoch(),)))

    def rest_of(self, feed: Feed) -> Iterator[Any]:
        """What a feed still gives, as `host_batches` does; with several workers, `WorkerRows`."""
        steps = self.steps()
        next_share = self._reader(feed, steps)
        if steps is None:
            return read_ahead(lambda: _whole(next_share()), max(1, self.ahead))
        return _rows_in_step(steps, read_ahead(next_share, max(1, self.ahead)))

    def _reader(self, feed: Feed, steps: InStep | None) -> Callable[[], Share]:
        """A function that gives this worker's next share, once it is announced."""

        def next_share() -> Share:
            found = feed.elements(1)
            if not found:
                raise StopIteration
            if steps is not None:
                refuse_composites(found[0].pieces)  # whose sizes the others do not know
                steps.announce(found[0])
            return found[0]

        return next_share

    @property
    def num_batches(self) -> int | None:
        """How many batches an epoch has, if that is known."""
        return None if self._shares.cardinality < 0 else self._shares.cardinality

    @property
    def element_spec(self) -> Any:
        """The shapes and types of one piece; the rows, which may vary, are None.

        An element that is not batched, of `distribute_datasets_from_function`, has no rows.

        Raises:
            UsageError: If the data set is empty, and only reading it shows what it holds.
        """
        spec = self._shares.spec
        if has_scalars(spec):
            return spec
        return jax.tree.map(lambda leaf: leaf.unbatched().batched(None), spec)

    def plan(self) -> ShardPlan:
        """Which worker reads what; print it.

        Raises:
            UsageError: If a function of the user makes the batches.
        """
        if self._plan is None:
            raise UsageError(
                "A plan shows how a data set is shared. Received: data sets of "
                "`distribute_datasets_from_function`. There the function decides, and nothing "
                "is shared. Look at its use of the InputContext."
            )
        return self._plan

    def position_from(self, states: Sequence[dict[str, Any]]) -> Any:
        """This worker's position, from those of as many or of another number of workers.

        Args:
            states: What iterators over the distributed data set gave; or one over the data set.

        Raises:
            UsageError: If they are no positions, or those of other workers are missing.
        """
        is_shared = isinstance(self._shares, Sharing)
        if is_shared and len(states) == 1 and _is_of_data_set(states[0]):
            position = read_by_one(states[0]["position"])
            states = [{**states[0], "workers": 1, "position": position}]
        if not all(isinstance(one, dict) and "workers" in one for one in states) or not states:
            raise UsageError(
                "A position of a distributed data set is what `get_state` of its iterator gave. "
                f"Received: {[type(one).__name__ for one in states]}, not all with `workers`. It "
                "says nothing of this data set. Pass that state, or a list of those of all workers."
            )
        if not isinstance(self._shares, Sharing):
            return states[0]["position"]
        before, now, worker = states[0]["workers"], self.workers, self._shares.worker
        was_divided = states[0]["position"]["divided"]
        alike = before == now and was_divided == self._shares.is_divided
        if alike and len(states) in (1, now):
            return states[worker if len(states) == now else 0]["position"]
        if len(states) != before and was_divided:
            raise UsageError(
                "Data that workers read in parts is resumed on another number of workers from "
                f"the positions of all. Received: {len(states)} of {before}, for {now} workers. "
                "What the others have read is not known. Pass a list of all their states."
            )
        return redistributed([state["position"] for state in states], self._shares)

    def reduce(self, initial_state: Any, reduce_func: Callable[[Any, Any], Any]) -> Any:
        """Fold `reduce_func(state, batch)` over one epoch."""
        state = initial_state
        for batch in self:
            state = reduce_func(state, batch)
        return state


def _rows_in_step(steps: InStep, shares: Iterator[Share]) -> Iterator[WorkerRows]:
    with contextlib.suppress(StopIteration):
        while True:
            step = steps.next(next(shares, None))
            counts = tuple(map(sum, step.sizes))
            yield WorkerRows(_whole(step.share), counts)


def _whole(share: Share) -> Any:
    """A worker's rows, in memory of their own, for `fit`."""
    refuse_composites(share.pieces)
    return own_copy(share.batch())


def _is_of_data_set(state: Any) -> bool:
    """Whether a position is that of an iterator over a data set that is not distributed."""
    return isinstance(state, dict) and "position" in state and "workers" not in state
