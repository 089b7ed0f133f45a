"""`DistributedIterator`: one pass over a distributed data set; it holds the position."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, final

import jax

from replicax._core import events
from replicax._core.context import current_frame
from replicax._core.errors import NotInCrossReplicaContext
from replicax._core.events import INPUT, timed
from replicax._core.tracing import current_reader, refuse_inside_a_trace, refuse_to_loop
from replicax._core.values import PerReplica
from replicax._input.sharing import ShardedSource
from replicax.data._iterators import (
    Optional,
    before,
    next_as_optional,
    next_or_error,
    noted,
    refuse_if_read,
    resumed,
)
from replicax.data._node import Feed
from replicax.data._nodes.ahead import Ahead
from replicax.data._nodes.lazy_batch import bytes_in_memory

if TYPE_CHECKING:
    from replicax._input.dataset import DistributedDataset
    from replicax._input.sharing import PerReplicaSource

# A small batch costs mostly cache misses, so several are made at a time. Only batches of rows in
# memory: reading those ahead has no effect that a user could see.
_BATCHES_AT_ONCE = 4
_MAX_SMALL_BYTES = 1 << 20  # of a global batch


@final
class DistributedIterator:
    """One pass over a `DistributedDataset`; it holds the position.

    A thread reads batches and places them on the devices before they are asked for.

    Args:
        dataset: The data set to read.
    """

    def __init__(self, dataset: DistributedDataset) -> None:
        self._dataset = dataset
        self._begin(dataset.next_epoch(), None)

    def _begin(self, epoch: int, position: Any) -> None:
        self._epoch, self._is_read = epoch, False
        self._waiting: list[tuple[Any, Any]] = []
        shares = self._dataset.shares
        feed = Feed(shares, (epoch,))
        if position is not None:
            feed.set_state(position)
        self._steps = self._dataset.steps()
        produce = self._dataset.producer(feed, self._steps)
        self._feed, self._position = feed, position
        ahead = self._dataset.ahead
        at_once = _batches_at_once(shares)
        self._ahead = Ahead(produce, feed.get_state, ahead, at_once) if ahead else None
        self._produce = produce

    def __iter__(self) -> DistributedIterator:
        refuse_to_loop("loops over a distributed data set")
        return self

    def __next__(self) -> Any:
        """The next batch, one piece per replica.

        Raises:
            StopIteration: At the end of the data set.
            NotInCrossReplicaContext: Inside `run`.
        """
        _check_outside()
        refuse_if_read(self._is_read)
        reader = current_reader()
        if reader is not None:
            return reader.take(self)
        refuse_inside_a_trace()
        if self._waiting:
            return self._waiting.pop()[0]
        batch = self._dataset.settled(self._steps, timed(INPUT, self._make))
        if events.totals is not None:
            events.totals.add(0, _rows(batch))
        return batch

    def put_back(self, batch: Any, state: Any) -> None:
        """Give back the batch that was taken last; `next` returns it again.

        Args:
            batch: The batch.
            state: The result of `get_state` before it was taken.
        """
        self._waiting.append((batch, state))

    def _make(self) -> Any:
        """This worker's batch of the next step, read and placed; None after its last rows."""
        try:
            if self._ahead is None:
                return self._produce()
            made = next(self._ahead)
        except StopIteration:
            return None
        self._position = self._ahead.state
        return made

    @property
    def dataset(self) -> DistributedDataset:
        """The data set that the iterator reads."""
        return self._dataset

    @property
    def element_spec(self) -> Any:
        """The shapes and types of one piece; see `DistributedDataset.element_spec`."""
        return self._dataset.element_spec

    def blank(self) -> Any:
        """A full batch of zeros, see `DistributedDataset.blank`. The iterator starts to read."""
        batch = self._dataset.blank()
        self.read_ahead()
        return batch

    def read_ahead(self) -> None:
        """Start the reading thread, if there is one and `fit` has not taken over."""
        if self._ahead is not None and not self._is_read:
            self._ahead.begin()

    def get_next(self) -> Any:
        """The next batch; at the end an `OutOfRangeError`, as TensorFlow's iterators raise."""
        return next_or_error(self)

    def get_next_as_optional(self) -> Optional:
        """The next batch as an optional, which is empty at the end."""
        _check_outside()
        return next_as_optional(self)

    def get_state(self) -> dict[str, Any]:
        """The position after the batch that was taken last; batches read ahead do not count.

        Returns:
            Plain data that can be pickled. If workers read the data in parts (FILE, HINT), it is
            this worker's position; keep all of them to resume with another number of workers.
        """
        refuse_if_read(self._is_read)
        if self._waiting:
            return before(self._waiting)
        if self._ahead is None:
            self._position = self._feed.get_state()
        position = self._position
        if position is None:
            position = Feed(self._dataset.shares, (self._epoch,)).get_state()
        noted_down = noted(self._dataset.sources, self._epoch, position)
        return {**noted_down, "workers": self._dataset.workers}

    def host_batches(self) -> Iterator[Any]:
        """The host batches left in this pass, for `fit`; a whole epoch at each later call.

        From then on only `fit` may read the iterator, because it reads ahead of its steps.
        """
        if self._is_read:
            return self._dataset.host_batches()
        self._begin(self._epoch, self.get_state()["position"])
        self._is_read = True
        return self._dataset.rest_of(self._feed)

    @property
    def workers(self) -> int:
        """The number of workers that share the data set."""
        return self._dataset.workers

    @property
    def num_batches(self) -> None:
        """None: the number of batches left is unknown."""
        return None

    def begin_pass(self, epoch: int) -> None:
        """Go to the start of pass `epoch`; later passes count from it."""
        self._begin(self._dataset.sources[0].epochs.next(after=epoch), None)

    def set_state(self, state: dict[str, Any] | Sequence[dict[str, Any]]) -> None:
        """Go to a position; later passes count from its epoch.

        The number of replicas may differ from the number when the position was taken.

        Args:
            state: The result of `get_state`, from an iterator over an equal data set, distributed
                or not. If workers read the data in parts and their number has changed, a list of
                the states of all former workers.

        Raises:
            UsageError: If it is not a position, or positions of other workers are missing.
        """
        states = [state] if isinstance(state, dict) else list(state)
        position = self._dataset.position_from(states)
        self._begin(resumed(self._dataset.sources, states[0]), position)


def _rows(batch: Any) -> int:
    """How many rows all replicas have of a batch; 0 if it has no array."""
    leaves = jax.tree.leaves(batch, is_leaf=lambda leaf: isinstance(leaf, PerReplica))
    arrays = (leaf for leaf in leaves if isinstance(leaf, PerReplica) or getattr(leaf, "ndim", 0))
    first = next(arrays, None)
    if not isinstance(first, PerReplica):
        return 0 if first is None else first.shape[0]
    if first.parts is None:
        return first.stacked.shape[0] * first.stacked.shape[1]
    return sum(part.shape[0] for part in first.parts)


def _batches_at_once(shares: ShardedSource | PerReplicaSource) -> int:
    size = bytes_in_memory(shares.input) if isinstance(shares, ShardedSource) else None
    return _BATCHES_AT_ONCE if size is not None and size <= _MAX_SMALL_BYTES else 1


def _check_outside() -> None:
    frame = current_frame()
    if frame is not None and frame.replica is not None:
        raise NotInCrossReplicaContext(
            "next(iterator) should be called from outside of replica_fn. Pass the batch: "
            "`strategy.run(fn, args=(next(iterator),))`."
        )
