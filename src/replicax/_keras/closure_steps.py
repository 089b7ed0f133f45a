"""`fit`, `evaluate` and `predict` by closures: each batch is scheduled, and runs on some worker.

Keras' loop goes on: it draws batches, calls callbacks and counts. Its step function is one that
schedules and returns at once, with the logs of a step that has ended; whoever then reads a
variable (a metric's result, a checkpoint) waits for all that was scheduled before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol, final

import jax
import keras
import numpy as np

from replicax._core.errors import UsageError
from replicax._keras import _compat
from replicax._keras.gradients import value_and_grad


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

    def before_access(self, flush: Callable[[], None] | None) -> None:
        """What to do before the coordinator reads or writes a variable."""
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
    """

    def __init__(self, model: Any, kind: str, scheduler: Scheduler) -> None:
        if model.run_eagerly:
            raise UsageError(
                "Workers run compiled closures. Received: a model compiled with run_eagerly=True. "
                "There is no Python of yours on a worker. Leave it out; to debug, use the strategy "
                "with engine='threads', or no strategy."
            )
        self._model, self._kind, self._scheduler = model, kind, scheduler
        self._waiting: deque[Scheduled] = deque()
        self._logs: Any = None
        self._step = _own_step(model, kind)
        # A new key for each function that is made: `compile` may have changed everything.
        self._key = object()
        self._loop = _compat.make_iterator_step(model, self._one, concatenate=kind == "predict")

    def __call__(self, state: Any, iterator: Any) -> tuple[Any, Any]:
        return self._loop(state, iterator)

    def _one(self, state: Any, batch: Any) -> tuple[Any, Any]:
        result = self._scheduler.schedule(self._key, self._step, (batch,))
        # From now on: tracing has read variables, and waited for what came before.
        self._scheduler.before_access(self.flush)
        if self._kind == "predict":
            return self._predicted(result), state
        self._waiting.append(result)
        while self._logs is None or len(self._waiting) > self._scheduler.under_way():
            self._logs = self._waiting.popleft().fetch()
        return self._logs, state

    def _predicted(self, result: Scheduled) -> Any:
        self._waiting.append(result)
        if len(self._waiting) > self._scheduler.under_way():
            self._waiting.popleft().fetch()
        if self._logs is None:
            self._logs = result.fetch()  # what the outputs look like
        leaves, tree = jax.tree.flatten(self._logs)
        return tree.unflatten([LaterArray(result, i) for i in range(len(leaves))])

    def flush(self) -> None:
        """Wait for all that was scheduled."""
        # While it waits, reads are those of the tracing of a closure, or of another thread.
        self._scheduler.before_access(None)
        while self._waiting:
            self._logs = self._waiting.popleft().fetch()
        self._scheduler.settle()

    def restore(self) -> None:
        """After a failure: nothing is under way any more."""
        self._waiting.clear()
        self._scheduler.before_access(None)
        _compat.drop_loop_state(self._model)

    def forget(self) -> None:
        """The end of a call."""
        self.flush()
        self._logs = None


@final
class LaterArray:
    """An array of a closure's result; who looks at it waits for it."""

    def __init__(self, result: Scheduled, index: int) -> None:
        self._result, self._index = result, index

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(jax.tree.leaves(self._result.fetch())[self._index], dtype=dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return np.shape(self.__array__())


def _own_step(model: Any, kind: str) -> Callable[[Any], Any]:
    if getattr(type(model), f"{kind}_step") is not getattr(_compat.JAXTrainer, f"{kind}_step"):
        return _stateless_step(model, kind)
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
        result, new = getattr(model, f"{kind}_step")(state, batch)
        news = (state[0], new) if kind == "predict" else new
        for variables, before, after in zip(groups, state, news, strict=True):
            for variable, old, value in zip(variables, before, after, strict=True):
                if value is not old:
                    _compat.write(variable, keras.ops.cast(value, variable.dtype))
        return result

    return step
