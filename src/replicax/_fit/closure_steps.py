"""`fit`, `evaluate` and `predict` by closures: each batch is scheduled, and runs on some worker.

Keras' loop goes on: it draws batches, calls callbacks and counts. Its step function is one that
schedules and returns at once, with logs that show the last step that has ended; whoever then
reads a variable (a metric's result, a checkpoint) waits for all that was scheduled before.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, final

import jax
import keras
import numpy as np

from replicax._core import seams
from replicax._core.errors import UsageError
from replicax._fit.worker_batches import promised
from replicax._keras import _compat
from replicax._keras.gradients import value_and_grad
from replicax._keras.pace import paced, rows_of


class Scheduled(Protocol):
    """A closure's result, some time."""

    def fetch(self) -> Any:
        """Wait for it."""
        ...


class Scheduler(Protocol):
    """Who runs closures."""

    def schedule(self, key: Any, fn: Callable[..., Any], args: Sequence[Any]) -> Scheduled:
        """Run `fn(*args)` on a worker; functions of one key are the same."""
        ...

    def under_way(self) -> int:
        """How many closures it is good to have under way."""
        ...

    def before_access(self, flush: Callable[[], None]) -> None:
        """Call `flush` before this thread reads or writes a variable."""
        ...

    def access(self, flush: Callable[[], None]) -> None:
        """Do so no more."""
        ...

    def host(self, optimizer: Any, variables: Sequence[Any]) -> None:
        """Let an optimizer run where the variables are."""
        ...

    def abandon(self) -> None:
        """Cancel what is scheduled, and wait for what runs."""
        ...

    def settle(self) -> None:
        """All closures have ended: let their updates be seen."""
        ...


@final
class ClosureSteps:
    """A model's train, test or predict function: `(state, iterator) -> (logs, state)`.

    Args:
        model: The Keras model.
        kind: `train`, `test` or `predict`.
        scheduler: Who runs closures.

    Raises:
        UsageError: If the model was compiled to run without being compiled.
    """

    def __init__(self, model: Any, kind: str, scheduler: Scheduler) -> None:
        _refuse_python(model)
        self._model, self._kind, self._scheduler = model, kind, scheduler
        self._waiting: deque[tuple[Scheduled, int]] = deque()
        self._pace = paced(model, kind, _compat.strategy_of(model).extended.distribution)
        self._newest = Newest()
        step = own_step(model, kind)
        self._step, self._step_of_own = step, lambda iterator: step(next(iterator))
        # New keys for each function that is made: `compile` may have changed everything.
        self._key, self._key_of_own = object(), object()
        if kind == "train" and model.optimizer.built:
            scheduler.host(model.optimizer, model.trainable_variables)

    def __call__(self, state: Any, iterator: Iterator[Any]) -> tuple[Any, Any]:
        batches = self._pace.take(iterator, self._model.steps_per_execution)
        results = [self._scheduled(batch) for batch in batches]
        if not self._newest.logs:
            self._take_one()
        logs = self._newest.logs[0]
        if self._kind == "predict":
            later = [LaterArray(results, index) for index in range(len(jax.tree.leaves(logs)))]
        else:
            later = [LaterLog(self._newest, index) for index in range(len(jax.tree.leaves(logs)))]
        return jax.tree.unflatten(jax.tree.structure(logs), later), state

    def _scheduled(self, batch: Any) -> Scheduled:
        source = promised(batch)
        if source is None:
            result = self._scheduler.schedule(self._key, self._step, (batch,))
        else:
            result = self._scheduler.schedule(self._key_of_own, self._step_of_own, (source.take(),))
        # From now on: tracing has read variables, and waited for what came before.
        self._scheduler.before_access(self.flush)
        self._waiting.append((result, rows_of(batch) if source is None else 0))
        while len(self._waiting) > self._scheduler.under_way():
            self._take_one()
        return result

    def _take_one(self) -> None:
        result, rows = self._waiting.popleft()
        self._newest.logs[:] = [result.fetch()]
        self._pace.did(1, rows)

    def flush(self) -> None:
        """Wait for all that was scheduled."""
        # While it waits, reads are those of the tracing of a closure.
        self._scheduler.access(self.flush)
        while self._waiting:
            self._take_one()
        self._scheduler.settle()

    def abandon(self) -> None:
        """After a failure: let nothing be under way any more, and no error be left over."""
        self._waiting.clear()
        self._scheduler.access(self.flush)
        self._scheduler.abandon()

    def forget(self) -> None:
        """The end of a call."""
        self.flush()
        self._newest = Newest()


@final
class Newest:
    """The logs of the last step that has ended; none before the first."""

    def __init__(self) -> None:
        self.logs: list[Any] = []


@final
class LaterLog:
    """A number of the logs: that of the last step that has ended, whenever one looks."""

    def __init__(self, newest: Newest, index: int) -> None:
        self._newest, self._index = newest, index

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(jax.tree.leaves(self._newest.logs[0])[self._index], dtype=dtype)

    def __float__(self) -> float:
        return float(self.__array__())


@final
class LaterArray:
    """An array of the results of some closures; who looks at it waits for them."""

    def __init__(self, results: Sequence[Scheduled], index: int) -> None:
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
            f"Workers run compiled closures. Received: a model compiled with {wanted}. There is "
            "no Python of yours on a worker. Leave it out; to debug, use the strategy with "
            "engine='threads', or no strategy."
        )


def own_step(model: Any, kind: str) -> Callable[[Any], Any]:
    """A step as a function of a batch that reads and writes the model's variables."""
    # The steps below do what these two methods do.
    methods = (f"{kind}_step", "compute_loss_and_updates")
    if takes_batch(model, kind):
        own = getattr(model, f"{kind}_step")
        return lambda batch: seams.call_traced(own, (batch,), {})
    if any(getattr(type(model), m) is not getattr(_compat.JAXTrainer, m) for m in methods):
        return _stateless_step(model, kind)
    return default_step(model, kind)


def takes_batch(model: Any, kind: str) -> bool:
    """Whether a program that speaks TensorFlow has a step of a batch, without the state."""
    own = getattr(type(model), f"{kind}_step")
    if own is getattr(_compat.JAXTrainer, f"{kind}_step") or not seams.speaks_tensorflow:
        return False
    parameters = inspect.signature(own).parameters.values()
    needed = [
        one for one in parameters if one.default is one.empty and one.kind < one.VAR_POSITIONAL
    ]
    return len(needed) == 2 and all(one.kind != one.VAR_POSITIONAL for one in parameters)


def default_step(model: Any, kind: str) -> Callable[[Any], Any]:
    """Keras' own step, as a function of a batch."""
    return {"train": _train_step, "test": _test_step, "predict": _predict_step}[kind](model)


def _train_step(model: Any) -> Callable[[Any], Any]:
    def step(batch: Any) -> Any:
        x, y, weights = _compat.unpack(batch)

        def loss_of() -> Any:
            predicted = model(x, **_compat.training_argument(model, True))
            loss = _compat.compute_loss(model, x, y, predicted, weights, training=True)
            return model.optimizer.scale_loss(loss), (loss, predicted)

        variables = model.trainable_variables
        (_, (loss, predicted)), grads = value_and_grad(loss_of, variables, has_aux=True)()
        model.optimizer.apply(grads, variables)
        return _compat.update_metrics(model, loss, x, y, predicted, weights)

    return step


def _test_step(model: Any) -> Callable[[Any], Any]:
    def step(batch: Any) -> Any:
        x, y, weights = _compat.unpack(batch)
        predicted = model(x, **_compat.training_argument(model, False))
        loss = _compat.compute_loss(model, x, y, predicted, weights, training=False)
        return _compat.update_metrics(model, loss, x, y, predicted, weights)

    return step


def _predict_step(model: Any) -> Callable[[Any], Any]:
    def step(batch: Any) -> Any:
        x, _, _ = _compat.unpack(batch)
        return model(x, **_compat.training_argument(model, False))

    return step


def _stateless_step(model: Any, kind: str) -> Callable[[Any], Any]:
    """A step that the user has written: from a state and a batch to logs and a state."""

    def step(batch: Any) -> Any:
        groups = [model.trainable_variables, model.non_trainable_variables]
        if kind == "train":
            groups.append(model.optimizer.variables)
        if kind != "predict":
            groups.append(model.metrics_variables)
        state = tuple([_compat.read(variable) for variable in group] for group in groups)
        result, new = seams.call_traced(getattr(model, f"{kind}_step"), (state, batch), {})
        news = (state[0], new) if kind == "predict" else new
        for variables, before, after in zip(groups, state, news, strict=True):
            for variable, old, value in zip(variables, before, after, strict=True):
                if value is not old:
                    _compat.write(variable, keras.ops.cast(value, variable.dtype))
        return result

    return step
