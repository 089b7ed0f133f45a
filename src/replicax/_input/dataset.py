"""`DistributedDataset`: batches split into one piece per replica."""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, final

import jax

from replicax._core.errors import UsageError
from replicax._core.tracing import refuse_to_loop, with_around
from replicax._core.values import WorkerRows
from replicax._input.in_step import Announce, InStep
from replicax._input.iterator import DistributedIterator
from replicax._input.sharing import (
    ShardedSource,
    WorkerBatch,
    redistributed,
    single_worker_position,
    zero_batch,
)
from replicax._input.source import has_scalars
from replicax.data import AutoShardPolicy
from replicax.data._node import Feed
from replicax.data._nodes.ahead import read_ahead
from replicax.data._spec import own_copy, refuse_composites

if TYPE_CHECKING:
    from replicax._core.options import InputOptions
    from replicax._input.policy import ShardPlan
    from replicax._input.sharing import PerReplicaSource
    from replicax.data import Dataset


@final
class DistributedDataset:
    """An iterable of batches, split over the replicas; each `iter` is a new epoch.

    Args:
        sources: The user's data set, or one for each replica if a function made them.
        shares: Yields this worker's `WorkerBatch` of each step.
        put: Places the pieces of a batch on the devices, or on the host.
        options: The number of batches that are placed ahead.
        plan: The data that each worker reads; None if a function of the user decides.
        offer: Announces a value to all workers and returns theirs later; None for one worker.
        name: A name of the data set that is the same on all workers.
        is_for_workers: Whether this process is a coordinator, which hands out all batches.

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
        shares: ShardedSource | PerReplicaSource,
        put: Callable[..., Any],
        options: InputOptions,
        plan: ShardPlan | None = None,
        offer: Announce | None = None,
        name: str = "data set",
        *,
        is_for_workers: bool = False,
    ) -> None:
        self.sources = sources
        self._shares = shares
        self._put = put
        self._plan = plan
        self._offer = offer
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
                "Cannot loop over a distributed data set on the coordinator of parameter servers. "
                "To use this dataset, you need to pass this dataset to "
                "ClusterCoordinator.create_per_worker_dataset and its iterator to `schedule`; or "
                "pass the data set to `fit`."
            )
        return self.begin()

    def begin(self) -> DistributedIterator:
        """Begin a pass; also allowed on a coordinator, for `fit`."""
        iterator = DistributedIterator(self)
        self._latest = weakref.ref(iterator)
        return iterator

    @property
    def shares(self) -> ShardedSource | PerReplicaSource:
        """The node that yields this worker's `WorkerBatch` of each step."""
        return self._shares.over([source.prepared() for source in self.sources])

    def next_epoch(self) -> int:
        """The number of a new pass."""
        # Only the first source: sources made from one data set share its epoch counter.
        epochs = self.sources[0].epochs
        if self._offer is None:
            return epochs.next()
        # All take the largest number, in case only some workers made an earlier pass.
        numbers = self._offer(f"{self._name}, epoch", epochs.next()).answers()
        return epochs.next(after=max(numbers))

    def producer(self, feed: Feed, steps: InStep | None) -> Callable[[], tuple[WorkerBatch, Any]]:
        """A function that reads, announces and places the next batch.

        It runs in a thread, so it must not hold a reference to the iterator. It places a batch on
        the assumption that all workers have equal pieces, and skips a batch whose pieces differ.
        """
        put, next_batch = self._put, self._reader(feed, steps)

        def produce() -> tuple[WorkerBatch, Any]:
            batch = next_batch()
            fits = steps is None or len(set(batch.sizes)) == 1
            return batch, put(batch.pieces) if fits else None

        return produce

    def steps(self) -> InStep | None:
        """The steps of a new pass over the data of several workers; None for one worker."""
        if self._offer is None:
            return None
        name, shares = f"{self._name}, pass {next(self._passes)}", self._shares
        is_same = isinstance(shares, ShardedSource) and shares.policy is AutoShardPolicy.DATA
        return InStep(self._offer, name, shares, is_same=is_same)

    def settled(self, steps: InStep | None, made: tuple[WorkerBatch, Any] | None) -> Any:
        """The placed batch of a step, from a producer's result, None at this worker's end.

        A batch is placed again if the workers' pieces differ in size. Raises StopIteration if no
        worker has rows left.
        """
        if steps is None:
            if made is None:
                raise StopIteration
            return made[1]
        batch, placed = made or (None, None)
        step = steps.next(batch)
        if not step.is_even:
            return self._put(step.batch.pieces, [rows for one in step.sizes for rows in one])
        return self._put(step.batch.pieces) if placed is None else placed

    def blank(self) -> Any:
        """A full batch of zeros on the devices of a real one. No batch is taken.

        The latest iterator starts to read meanwhile.

        Raises:
            UsageError: If the size of the batches is unknown.
        """
        full = self._shares.full
        if full is None:
            raise UsageError(
                "The batches of this data set have no known size, or another one for each "
                "replica, so their shape is unknown before one is read. Make them with `batch(n)`."
            )
        mine, sizes = full
        with with_around(is_known=True):
            pieces = zero_batch(self._shares, mine).pieces
        iterator = self._latest()
        if iterator is not None:
            iterator.read_ahead()
        is_even = self._offer is None or len(set(sizes)) == 1
        return self._put(pieces) if is_even else self._put(pieces, sizes)

    def host_batches(self) -> Iterator[Any]:
        """One epoch of this worker's batches, uncut, as copies in host memory."""
        return self.rest_of(Feed(self.shares, (self.next_epoch(),)))

    def rest_of(self, feed: Feed) -> Iterator[Any]:
        """The batches left in a feed, as in `host_batches`; `WorkerRows` with several workers."""
        steps = self.steps()
        next_batch = self._reader(feed, steps)
        if steps is None:
            return read_ahead(lambda: _whole(next_batch()), max(1, self.ahead))
        return _rows_in_step(steps, read_ahead(next_batch, max(1, self.ahead)))

    def _reader(self, feed: Feed, steps: InStep | None) -> Callable[[], WorkerBatch]:
        """A function that reads this worker's next batch and announces it."""

        def next_batch() -> WorkerBatch:
            found = feed.elements(1)
            if not found:
                raise StopIteration
            if steps is not None:
                refuse_composites(found[0].pieces)  # whose sizes the others do not know
                steps.announce(found[0])
            return found[0]

        return next_batch

    @property
    def num_batches(self) -> int | None:
        """The number of batches of an epoch; None if unknown."""
        return None if self._shares.cardinality < 0 else self._shares.cardinality

    @property
    def element_spec(self) -> Any:
        """The shapes and types of one piece; the number of rows, which may vary, is None.

        An unbatched element of `distribute_datasets_from_function` has no axis of rows.

        Raises:
            UsageError: If the spec is read from the first batch, and the data set is empty.
        """
        spec = self._shares.spec
        if has_scalars(spec):
            return spec
        return jax.tree.map(lambda leaf: leaf.unbatched().batched(None), spec)

    def plan(self) -> ShardPlan:
        """The data that each worker reads; print it.

        Raises:
            UsageError: If a function of the user makes the batches.
        """
        if self._plan is None:
            raise UsageError(
                "A data set of `distribute_datasets_from_function` has no plan: your function "
                "decides what each worker reads, from its InputContext."
            )
        return self._plan

    def position_from(self, states: Sequence[dict[str, Any]]) -> Any:
        """This worker's position, from positions of the same or of another number of workers.

        Args:
            states: The states of iterators over the distributed data set, or the state of one
                iterator over the data set itself.

        Raises:
            UsageError: If they are not positions, or positions of other workers are missing.
        """
        is_shared = isinstance(self._shares, ShardedSource)
        if is_shared and len(states) == 1 and _is_undistributed(states[0]):
            position = single_worker_position(states[0]["position"])
            states = [{**states[0], "workers": 1, "position": position}]
        if not all(isinstance(one, dict) and "workers" in one for one in states) or not states:
            allowed = "a result of a distributed iterator's `get_state`, or a list of all workers'"
            raise UsageError.of("state", allowed, list(states))
        if not isinstance(self._shares, ShardedSource):
            return states[0]["position"]
        before, now, worker = states[0]["workers"], self.workers, self._shares.worker
        was_divided = states[0]["position"]["divided"]
        alike = before == now and was_divided == self._shares.is_divided
        if alike and len(states) in (1, now):
            return states[worker if len(states) == now else 0]["position"]
        if len(states) != before and was_divided:
            raise UsageError(
                f"Cannot resume on {now} workers from {len(states)} of the positions of {before}, "
                "because each worker read other parts. Pass a list of the states of all workers."
            )
        return redistributed([state["position"] for state in states], self._shares)

    def reduce(self, initial_state: Any, reduce_func: Callable[[Any, Any], Any]) -> Any:
        """Fold `reduce_func(state, batch)` over one epoch."""
        state = initial_state
        for batch in self:
            state = reduce_func(state, batch)
        return state


def _rows_in_step(steps: InStep, batches: Iterator[WorkerBatch]) -> Iterator[WorkerRows]:
    with contextlib.suppress(StopIteration):
        while True:
            step = steps.next(next(batches, None))
            counts = tuple(map(sum, step.sizes))
            yield WorkerRows(_whole(step.batch), counts)


def _whole(batch: WorkerBatch) -> Any:
    """The rows of a worker, in memory of their own, for `fit`."""
    refuse_composites(batch.pieces)
    return own_copy(batch.batch())


def _is_undistributed(state: Any) -> bool:
    """Whether a position belongs to an iterator over a data set that is not distributed."""
    return isinstance(state, dict) and "position" in state and "workers" not in state
