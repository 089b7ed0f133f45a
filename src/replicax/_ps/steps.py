"""`fit`, `evaluate` and `predict` by closures: each batch is scheduled, and runs on some worker.

Keras' loop draws batches, calls callbacks and counts as usual. Its step function schedules a
closure and returns at once, with the logs of the last step that has ended. A later read of a
variable (a metric's result, a checkpoint) waits for everything scheduled before. Of data that
workers read by themselves, Keras' loop draws a promise of a batch, and the closure takes the batch
on its worker.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, final

import jax
import numpy as np

from replicax._core.errors import UsageError
from replicax._fit.data import DatasetAdapter, no_length
from replicax._fit.step_program import own_step
from replicax._fit.steps import rows_of, throughput_for
from replicax._keras import _compat

if TYPE_CHECKING:
    from replicax._ps.queue.coordination import Coordination
    from replicax._ps.queue.remote_value import RemoteValue
    from replicax._ps.store.store import ServerStore

AHEAD = 2  # closures per lane: one runs, one waits


@final
class PassOfWorkers:
    """One pass of the workers over their data."""

    def __init__(self, iterator: Any) -> None:
        self.iterator = iterator
        self.is_begun = False

    def take(self) -> Any:
        self.is_begun = True
        return self.iterator


@final
class Promised(np.ndarray):
    """An array of a batch that some worker will read; Keras uses only its shape."""

    source: PassOfWorkers


def promised(batch: Any) -> PassOfWorkers | None:
    """The source of a batch that a worker is to read."""
    first = next(iter(jax.tree.leaves(batch)), None)
    return first.source if isinstance(first, Promised) else None


def _promise(array: Any, source: PassOfWorkers) -> Promised:
    found = np.asarray(array).view(Promised)
    found.source = source
    return found


@final
class WorkerDataAdapter(DatasetAdapter):
    """The adapter by which Keras' loops read a per-worker data set."""

    def __init__(self, dataset: Any, steps: int | None) -> None:
        if steps is None and dataset.num_batches is None:
            raise no_length(of_validation=False)
        self._dataset = dataset
        self._pass: PassOfWorkers | None = None

    def get_numpy_iterator(self) -> Iterator[Any]:
        # Keras looks at the first batch before it begins: that is no pass.
        if self._pass is None or self._pass.is_begun:
            self._pass = PassOfWorkers(iter(self._dataset))
        source, count = self._pass, self._dataset.num_batches
        batch = jax.tree.map(lambda array: _promise(array, source), self._dataset.example)
        yield from itertools.repeat(batch) if count is None else itertools.repeat(batch, count)

    @property
    def position(self) -> Any:
        """The position in the pass, if workers share the data and no closure is under way."""
        is_shared = self._dataset.shard == "dynamic"
        return self._pass.iterator.get_state() if self._pass and is_shared else None

    def go_to(self, position: Any, *, is_over: bool) -> None:
        """Let the next pass be the one that a position is of, or the one behind it."""
        iterator = iter(self._dataset)
        iterator.set_state(position)
        self._pass = None if is_over else PassOfWorkers(iterator)


def steps_maker(coordination: Coordination, store: ServerStore) -> Callable[[Any, str], Any]:
    flushes = Flushes(store)
    return lambda model, kind: ClosureSteps(model, kind, coordination, flushes)


@final
class ClosureSteps:
    """A model's train, test or predict function: `(state, iterator) -> (logs, state)`."""

    def __init__(self, model: Any, kind: str, coordination: Coordination, flushes: Flushes) -> None:
        _refuse_python(model)
        self._model, self._kind = model, kind
        self._coordination, self._flushes = coordination, flushes
        self._waiting: deque[tuple[RemoteValue, int]] = deque()
        self._throughput = throughput_for(
            model, kind, _compat.strategy_of(model).extended.distribution
        )
        self._newest: list[Any] = []  # the logs of the last step that has ended
        step = own_step(model, kind)
        self._step, self._step_of_own = step, lambda iterator: step(next(iterator))
        # New keys for each function, because `compile` may have changed everything.
        self._key, self._key_of_own = object(), object()
        if kind == "train" and model.optimizer.built:
            coordination.engine.store.optimizer(model.optimizer, model.trainable_variables)

    def __call__(self, state: Any, iterator: Iterator[Any]) -> tuple[Any, Any]:
        batches = self._throughput.take(iterator, self._model.steps_per_execution)
        results = [self._scheduled(batch) for batch in batches]
        if not self._newest:
            self._take_one()
        logs = self._newest[0]
        if self._kind == "predict":
            later = [LaterArray(results, index) for index in range(len(jax.tree.leaves(logs)))]
        else:
            later = [LaterLog(self._newest, index) for index in range(len(jax.tree.leaves(logs)))]
        return jax.tree.unflatten(jax.tree.structure(logs), later), state

    def _scheduled(self, batch: Any) -> RemoteValue:
        source = promised(batch)
        if source is None:
            call = self._step, self._key, (batch,)
        else:
            call = self._step_of_own, self._key_of_own, (source.take(),)
        result = self._coordination.submit(self._coordination.tracer.traced(*call, {}))
        # From here on, because tracing reads variables and waits for earlier closures.
        self._flushes.add(self.flush)
        self._waiting.append((result, rows_of(batch) if source is None else 0))
        workers = self._coordination.engine.cluster.num_workers
        lanes = workers * self._coordination.closures_in_flight
        while len(self._waiting) > lanes * AHEAD:
            self._take_one()
        return result

    def _take_one(self) -> None:
        result, rows = self._waiting.popleft()
        self._newest[:] = [result.fetch()]
        self._throughput.record(1, rows)

    def flush(self) -> None:
        """Wait for everything that was scheduled."""
        # Reads during the wait come from the tracing of a closure.
        self._flushes.remove(self.flush)
        while self._waiting:
            self._take_one()
        self._coordination.barrier()

    def abandon(self) -> None:
        """After a failure, stop what is under way and drop pending errors."""
        self._waiting.clear()
        self._flushes.remove(self.flush)
        self._coordination.abandon()

    def forget(self) -> None:
        self.flush()
        self._newest = []


@final
class LaterLog:
    """A number in the logs: its value after the last ended step, at the time of reading."""

    def __init__(self, newest: Sequence[Any], index: int) -> None:
        self._newest, self._index = newest, index

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(jax.tree.leaves(self._newest[0])[self._index], dtype=dtype)

    def __float__(self) -> float:
        return float(self.__array__())


@final
class LaterArray:
    """An array of results of some closures; reading it waits for them."""

    def __init__(self, results: Sequence[RemoteValue], index: int) -> None:
        self._results, self._index = results, index

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        found = [jax.tree.leaves(result.fetch())[self._index] for result in self._results]
        return np.asarray(found[0] if len(found) == 1 else np.concatenate(found), dtype=dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return np.shape(self.__array__())


def _refuse_python(model: Any) -> None:
    wanted = "run_eagerly=True" if model.run_eagerly else "jit_compile=False"
    if model.run_eagerly or not model.jit_compile:
        raise UsageError(
            f"Workers cannot run a model compiled with {wanted}. Leave it out. To debug, use the "
            "strategy with engine='threads', or no strategy."
        )


@final
class Flushes:
    """The waits for steps under way that a read or write of a variable begins with.

    Only the thread that has scheduled steps waits for them: a lane that traces a further program
    reads variables, too, and must not wait for itself.
    """

    def __init__(self, store: ServerStore) -> None:
        known: list[tuple[int, Callable[[], None]]] = []
        self._known = known

        def flush_all() -> None:  # the store must not refer to the strategy
            here = threading.get_ident()
            for thread, flush in known[:]:  # a flush takes itself out
                if thread == here:
                    flush()

        store.before_access = flush_all

    def add(self, flush: Callable[[], None]) -> None:
        """Call `flush` before this thread reads or writes a variable."""
        here = threading.get_ident(), flush
        if here not in self._known:
            self._known.append(here)

    def remove(self, flush: Callable[[], None]) -> None:
        """Call it no more."""
        self._known[:] = [known for known in self._known if known[1] != flush]
