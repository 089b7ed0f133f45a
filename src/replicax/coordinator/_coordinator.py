"""`ClusterCoordinator`: functions that run on any worker, one after the other or at once.

The queue, the threads and the recovery of workers are in `_ps`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, final

from replicax._core.errors import UsageError
from replicax._ps.queue.remote_value import fetched, holds_remote

if TYPE_CHECKING:
    from replicax._ps.queue.coordination import Coordination
    from replicax._ps.queue.recovery import Recovery
    from replicax._ps.queue.remote_value import RemoteValue


_SHARDS = ("off", "dynamic")
_SECONDS = 0.5


@final
class ClusterCoordinator:
    """Schedules functions on the workers of a strategy, and waits for them.

    Each strategy has one coordinator: constructing it again returns the same object.

    A function runs **at least once**: if its worker dies, another worker runs it, and each server
    applies its updates once. The first error cancels all scheduled functions. The next `schedule`,
    `join` or `done` raises it when no function runs any more. After that the coordinator can be
    used again.

    **Differs from TF:** a server that dies is restored, and functions continue; workers may join
    while functions run; a data set can be divided over the workers.

    Args:
        strategy: A `ParameterServerStrategy`.

    Example:
        >>> import keras
        >>> import replicax as rx
        >>> strategy = rx.ParameterServerStrategy(engine="threads", num_workers=2, num_ps=1)
        >>> with strategy.scope():
        ...     counter = keras.Variable(0.0)
        >>> coordinator = rx.coordinator.ClusterCoordinator(strategy)
        >>> @rx.function
        ... def count():
        ...     return counter.assign_add(1.0)
        >>> for _ in range(10):
        ...     _ = coordinator.schedule(count)
        >>> coordinator.join()
        >>> float(counter.numpy())
        10.0
    """

    _strategy: Any
    _coordination: Coordination

    def __new__(cls, strategy: Any) -> ClusterCoordinator:
        """The coordinator of `strategy`."""
        coordination = getattr(strategy, "coordination", None)
        if coordination is None:
            raise UsageError(
                "A ClusterCoordinator needs a ParameterServerStrategy, got "
                f"{type(strategy).__name__}. Use `strategy.run` with other strategies."
            )

        def make() -> ClusterCoordinator:
            made = super(ClusterCoordinator, cls).__new__(cls)
            made._strategy, made._coordination = strategy, coordination
            return made

        return coordination.shared(make)

    @property
    def strategy(self) -> Any:
        """The strategy of the workers."""
        return self._strategy

    @property
    def recoveries(self) -> Sequence[Recovery]:
        """The recoveries of servers that died, in order.

        Each has `server`, `lost_updates` (the number of completed functions whose updates the
        server lost), `seconds`, and `source`: "snapshot" or "replica".
        """
        return self._coordination.recoveries

    def schedule(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
    ) -> RemoteValue:
        """Schedule `fn(*args, **kwargs)` to run on a worker.

        The function is traced now, in the strategy's scope, and runs later. If 262,144 functions
        wait for a worker, this call blocks.

        Args:
            fn: A function made by `rx.function`.
            args: Its arguments. For a `PerWorkerValues` or an iterator of a per-worker data set,
                `fn` gets the component of the worker on which it runs.
            kwargs: The same, by name.

        Returns:
            A handle of the result.

        Raises:
            TypeError: If `fn` was not made by `rx.function`.
            ValueError: If there is a `RemoteValue` among the arguments.
            Exception: The error of a function scheduled earlier; then `fn` is not scheduled.

        Example:
            >>> import replicax as rx
            >>> strategy = rx.ParameterServerStrategy(engine="threads", num_workers=2, num_ps=1)
            >>> coordinator = rx.coordinator.ClusterCoordinator(strategy)
            >>> @rx.function
            ... def add(x, y):
            ...     return x + y
            >>> int(coordinator.schedule(add, args=(1,), kwargs={"y": 2}).fetch())
            3
        """
        task = self._coordination.task(fn, tuple(args or ()), dict(kwargs or {}))
        return self._coordination.submit(task)

    def join(self, progress: bool = False) -> None:
        """Wait until all scheduled functions have ended; later functions see their updates.

        Args:
            progress: Whether to show the number of ended functions on standard error.

        Raises:
            Exception: The first error that a scheduled function raised, once; the others were
                cancelled.
        """
        if progress:
            wait_and_show(self._coordination)
        else:
            self._coordination.wait()
        self._coordination.barrier()

    def done(self) -> bool:
        """Whether all scheduled functions have ended.

        Raises:
            Exception: The first error that a scheduled function raised, once.

        Example:
            >>> import replicax as rx
            >>> strategy = rx.ParameterServerStrategy(engine="threads", num_workers=2, num_ps=1)
            >>> rx.coordinator.ClusterCoordinator(strategy).done()
            True
        """
        return self._coordination.done()

    def fetch(self, val: Any) -> Any:
        """Wait for the `RemoteValue`s in a nest, and replace them by their results.

        Args:
            val: A `RemoteValue`, or a nest of them; other leaves stay as they are.

        Returns:
            The nest, with NumPy values.

        Raises:
            Exception: The error of the first of their functions that failed.

        Example:
            >>> import replicax as rx
            >>> strategy = rx.ParameterServerStrategy(engine="threads", num_workers=2, num_ps=1)
            >>> coordinator = rx.coordinator.ClusterCoordinator(strategy)
            >>> @rx.function
            ... def square(x):
            ...     return x * x
            >>> nest = {"four": coordinator.schedule(square, args=(2,)), "name": "squares"}
            >>> fetched = coordinator.fetch(nest)
            >>> int(fetched["four"]), fetched["name"]
            (4, 'squares')
        """
        found = fetched(val)
        if holds_remote(val):
            self._coordination.barrier()
        return found

    def create_per_worker_dataset(
        self, dataset_or_fn: Any, shard: str = "off", *, num_splits: int | None = None
    ) -> Any:
        """Give each worker a data set of its own, or its share of one.

        Args:
            dataset_or_fn: A data set, or a function without arguments that makes one and is
                called on each worker.
            shard: `"off"`: each worker reads the whole data set, as in TensorFlow.
                `"dynamic"`: the workers divide the data set while they read, so that each example
                is visited once in an epoch, although workers come and go. Each `iter` is the next
                epoch. `len` is its number of batches, if known in advance. A function that
                takes one batch more raises `OutOfRangeError` when all the others have ended.
            num_splits: The number of splits of an epoch; by default four for each worker.
                A worker reads a split from start to end. If the number of batches is unknown,
                splits are files if there are enough of them; otherwise each worker reads all of
                the data and computes with its part.

        Returns:
            An iterable, whose iterators are arguments of scheduled functions.

        Example:
            >>> import replicax as rx
            >>> strategy = rx.ParameterServerStrategy(engine="threads", num_workers=2, num_ps=1)
            >>> coordinator = rx.coordinator.ClusterCoordinator(strategy)
            >>> dataset = rx.data.Dataset.range(6).batch(2)
            >>> per_worker = coordinator.create_per_worker_dataset(dataset, shard="dynamic")
            >>> @rx.function
            ... def total(iterator):
            ...     return next(iterator).sum()
            >>> epoch = iter(per_worker)
            >>> sums = [coordinator.schedule(total, args=(epoch,)) for _ in range(len(per_worker))]
            >>> sorted(int(value) for value in coordinator.fetch(sums))
            [1, 5, 9]
        """
        if shard not in _SHARDS:
            raise UsageError.of(
                "shard",
                f"one of {', '.join(map(repr, _SHARDS))}",
                shard,
                "'dynamic' visits each example once in an epoch, 'off' lets each worker read the "
                "whole data set.",
            )
        if num_splits is not None and num_splits < 1:
            raise UsageError.of(
                "num_splits",
                "at least 1",
                num_splits,
                "Leave it out for a number that suits data and workers.",
            )
        return self._coordination.worker_dataset(dataset_or_fn, shard, num_splits)

    def staleness(self) -> dict[int, int]:
        """The staleness of all gradients so far.

        The staleness of a gradient is the number of updates that its server has made between the
        read of the variables and the arrival of the gradient. `rx.callbacks.Staleness` shows it
        for each epoch of `fit`.

        Returns:
            The number of gradients for each staleness, summed over the servers.

        Example:
            >>> import replicax as rx
            >>> strategy = rx.ParameterServerStrategy(engine="threads", num_workers=2, num_ps=1)
            >>> rx.coordinator.ClusterCoordinator(strategy).staleness()
            {}
        """
        return dict(sorted(self._coordination.staleness().items()))

    def add_worker(self) -> int:
        """Add a worker, also while functions run; it takes functions at once.

        Returns:
            The number of the worker.

        Example:
            >>> import replicax as rx
            >>> strategy = rx.ParameterServerStrategy(engine="threads", num_workers=2, num_ps=1)
            >>> rx.coordinator.ClusterCoordinator(strategy).add_worker()
            2
        """
        return self._coordination.add_worker()


def wait_and_show(coordination: Coordination) -> None:
    """Wait until all functions have ended, and show the number of ended ones on standard error."""
    total = len(coordination)
    shown = False
    try:
        while not coordination.wait(_SECONDS):
            left = len(coordination)
            total = max(total, left)
            sys.stderr.write(f"\r{total - left} of {total} scheduled functions have ended")
            sys.stderr.flush()
            shown = True
    finally:
        if shown:
            sys.stderr.write("\n")
