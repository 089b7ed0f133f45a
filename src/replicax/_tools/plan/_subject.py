"""The subjects of a plan: the training step of a Keras model, or a function for `strategy.run`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, final

import jax
import numpy as np

from replicax._core.errors import UsageError
from replicax._fit.trainer import install_hooks
from replicax._keras import _compat
from replicax._program.capture import capture
from replicax._tools.plan._compiled import (
    Lowered,
    build,
    lower_replica_step,
    lower_train_step,
    rows_of,
    shapes_of,
    with_rows,
)


class Subject(Protocol):
    """Something that can be lowered for a strategy and a batch."""

    @property
    def name(self) -> str:
        """What it is called."""
        ...

    @property
    def batch(self) -> Any:
        """The shapes of the whole batch."""
        ...

    @property
    def parameters(self) -> int:
        """The number of trained numbers."""
        ...

    @property
    def variables(self) -> Sequence[Any]:
        """All that a step may read or write."""
        ...

    def lower(self, batch: Any, strategy: Any) -> Lowered:
        """Trace and lower the step for this batch."""
        ...

    def run(self, batch: Any, strategy: Any) -> None:
        """Take the step with this batch, and wait for its end."""
        ...


@final
@dataclass(frozen=True)
class ModelStep:
    """The step that `fit` runs."""

    model: Any
    batch: Any

    @property
    def name(self) -> str:
        return str(self.model.name)

    @property
    def parameters(self) -> int:
        return _numbers_in(self.model.trainable_variables)

    @property
    def variables(self) -> Sequence[Any]:
        model = self.model
        return [*model.variables, *model.metrics_variables, *model.optimizer.variables]

    def lower(self, batch: Any, strategy: Any) -> Lowered:
        return lower_train_step(self.model, batch, strategy)

    def run(self, batch: Any, strategy: Any) -> None:
        self.model.train_on_batch(*_zeros(batch))


@final
@dataclass(frozen=True)
class ReplicaStep:
    """A function for `strategy.run`."""

    function: Callable[..., Any]
    batch: Any
    variables: Sequence[Any]

    @classmethod
    def of(cls, function: Callable[..., Any], batch: Any) -> ReplicaStep:
        """The function, traced once here without a scope, so that it makes its variables."""
        leaves, tree = jax.tree.flatten(batch)
        install_hooks()  # they tell which variable an optimizer keeps a slot for
        captured = capture(lambda leaves: function(*tree.unflatten(leaves)), leaves)
        return cls(function, batch, captured.variables)

    @property
    def name(self) -> str:
        return str(getattr(self.function, "__name__", type(self.function).__name__))

    @property
    def parameters(self) -> int:
        return _numbers_in(variable for variable in self.variables if variable.trainable)

    def lower(self, batch: Any, strategy: Any) -> Lowered:
        return lower_replica_step(self.function, batch, strategy)

    def run(self, batch: Any, strategy: Any) -> None:
        own = with_rows(batch, rows_of(batch) // strategy.num_replicas_in_sync)
        with strategy.scope():
            jax.block_until_ready(strategy.run(self.function, args=_zeros(own)))


def _zeros(batch: Any) -> Any:
    return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), batch)


def _numbers_in(variables: Iterable[Any]) -> int:
    return sum(int(np.prod(variable.shape)) for variable in variables)


def subject(model: Any, batch: Any = None) -> Subject:
    """Prepare a model, or a function for `strategy.run`, for a plan.

    The batch is as `fit` takes it; by default one that the model's inputs and loss suggest. For a
    function it is the tuple of its arguments.
    """
    is_model = isinstance(model, _compat.Trainer)
    if callable(model) and not is_model and isinstance(batch, tuple):
        return ReplicaStep.of(model, shapes_of(batch))
    if not is_model:
        raise UsageError(
            f"Cannot plan a {type(model).__name__} with a {type(batch).__name__}. Pass a compiled "
            "Keras model, or a function and the tuple of its arguments; on the command line a "
            "script that calls `fit`."
        )
    shapes = shapes_of(batch) if batch is not None else suggested_batch(model)
    build(model, shapes)
    return ModelStep(model, shapes)


def suggested_batch(model: Any, rows: int = 32) -> Any:
    """The batch that a model's inputs, outputs and loss suggest."""
    inputs, outputs = getattr(model, "inputs", None), getattr(model, "outputs", None)
    open_ended = [t for t in inputs or () if None in t.shape[1:]]
    if not inputs or not outputs or open_ended:
        found = f"inputs of shape {open_ended[0].shape}" if open_ended else "no declared inputs"
        raise UsageError(
            f"The shapes of a batch for {model.name!r} are not known: it has {found}. Pass a "
            "batch, name a script that calls `fit`, or declare whole shapes with `keras.Input`."
        )
    x = [_rows(rows, tensor.shape[1:], tensor.dtype) for tensor in inputs]
    losses = _losses(model)
    y = [_target(rows, tensor, loss) for tensor, loss in zip(outputs, losses, strict=True)]
    return (x[0] if len(x) == 1 else x, y[0] if len(y) == 1 else y)


def _losses(model: Any) -> list[str]:
    """The name of the loss of each output."""
    loss = getattr(model, "loss", None)
    if isinstance(loss, dict):
        losses = [loss.get(name) for name in model.output_names]
    elif isinstance(loss, list | tuple):
        losses = list(loss)
    else:
        losses = [loss] * len(model.outputs)
    return [_name(one) for one in losses]


def _name(loss: Any) -> str:
    if loss is None or isinstance(loss, str):
        return loss or ""
    return getattr(loss, "name", None) or getattr(loss, "__name__", "")


def _target(rows: int, output: Any, loss: str) -> Any:
    if loss.startswith("sparse_"):
        return _rows(rows, output.shape[1:-1], "int32")
    return _rows(rows, output.shape[1:], "float32")


def _rows(rows: int, shape: Any, kind: Any) -> Any:
    return jax.ShapeDtypeStruct(
        (rows, *shape), jax.dtypes.canonicalize_dtype(np.dtype(_numpy_name(kind)))
    )


def _numpy_name(kind: Any) -> Any:
    return jax.numpy.dtype(kind)
