"""The subjects of a plan: the training step of a Keras model, or a function for `strategy.run`.

A model is given, or loaded from a script, which runs up to its first training step, from a saved
model, or from Keras by name.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import jax
import keras
import numpy as np

from replicax._core.errors import UsageError, did_you_mean
from replicax._fit.trainer import install_hooks
from replicax._keras import _compat
from replicax._program.capture import capture
from replicax._tools.plan.step import (
    Lowered,
    build,
    lower_replica_step,
    lower_train_step,
    rows_of,
    shapes_of,
    with_rows,
)
from replicax._tools.script import noting, replaced, run_program


@dataclass(frozen=True)
class PlannedStep:
    """Something that can be lowered for a strategy and a batch."""

    name: str
    batch: Any  # the shapes of the whole one
    parameters: int  # trained numbers
    variables: Sequence[Any]  # all that a step may read or write
    lower: Callable[[Any, Any], Lowered]  # of a batch and a strategy
    run: Callable[[Any, Any], Any]  # takes a step with zeros, and waits for its end


def _of_model(model: Any, batch: Any) -> PlannedStep:
    """The step that `fit` runs."""
    build(model, batch)
    return PlannedStep(
        str(model.name),
        batch,
        _numbers_in(model.trainable_variables),
        [*model.variables, *model.metrics_variables, *model.optimizer.variables],
        functools.partial(lower_train_step, model),
        lambda batch, _strategy: model.train_on_batch(*_zeros(batch)),
    )


def _of_function(function: Callable[..., Any], batch: Any) -> PlannedStep:
    """The function, traced once here without a scope, so that it makes its variables."""
    leaves, tree = jax.tree.flatten(batch)
    install_hooks()  # they tell which variable an optimizer keeps a slot for
    variables = capture(lambda leaves: function(*tree.unflatten(leaves)), leaves).variables

    def run(batch: Any, strategy: Any) -> None:
        own = with_rows(batch, rows_of(batch) // strategy.num_replicas_in_sync)
        with strategy.scope():
            jax.block_until_ready(strategy.run(function, args=_zeros(own)))

    return PlannedStep(
        str(getattr(function, "__name__", type(function).__name__)),
        batch,
        _numbers_in(variable for variable in variables if variable.trainable),
        variables,
        functools.partial(lower_replica_step, function),
        run,
    )


def _zeros(batch: Any) -> Any:
    return jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), batch)


def _numbers_in(variables: Iterable[Any]) -> int:
    return sum(math.prod(variable.shape) for variable in variables)


def planned_step(model: Any, batch: Any = None) -> PlannedStep:
    """Prepare a model, or a function for `strategy.run`, for a plan.

    The batch is as `fit` takes it; by default one that the model's inputs and loss suggest. For a
    function it is the tuple of its arguments.
    """
    if isinstance(model, PlannedStep):  # that was loaded
        return model
    is_model = isinstance(model, _compat.Trainer)
    if callable(model) and not is_model and isinstance(batch, tuple):
        return _of_function(model, shapes_of(batch))
    if not is_model:
        raise UsageError(
            "Needs a compiled Keras model, or a function and the tuple of its arguments, got "
            f"{type(model).__name__} and {type(batch).__name__}. On the command line pass a script "
            "that calls `fit`."
        )
    return _of_model(model, shapes_of(suggested_batch(model) if batch is None else batch))


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
    y = []
    for output, loss in zip(outputs, _losses(model), strict=True):
        is_sparse = loss.startswith("sparse_")  # it takes the numbers of classes
        shape = output.shape[1:-1] if is_sparse else output.shape[1:]
        y.append(_rows(rows, shape, "int32" if is_sparse else "float32"))
    return (x[0] if len(x) == 1 else x, y[0] if len(y) == 1 else y)


def _losses(model: Any) -> list[str]:
    """The name of the loss of each output."""
    loss = getattr(model, "loss", None)
    if isinstance(loss, dict):
        losses = [loss.get(name) for name in model.output_names]
    else:
        losses = loss if isinstance(loss, list | tuple) else [loss] * len(model.outputs)
    return [
        one if isinstance(one, str) else getattr(one, "name", getattr(one, "__name__", ""))
        for one in losses
    ]


def _rows(rows: int, shape: Any, kind: Any) -> Any:
    return jax.ShapeDtypeStruct((rows, *shape), jax.numpy.dtype(kind))


APPLICATIONS, HUB = "keras.applications", "keras_hub"


def load(named: str, arguments: Sequence[str] = ()) -> PlannedStep:
    """Load the target of a plan.

    It is a script, a `.keras` file, `keras.applications:NAME` or `keras_hub:PRESET`.
    """
    source, _, name = named.partition(":")
    if source == APPLICATIONS:
        return planned_step(_application(name))
    if source == HUB:
        return planned_step(_from_hub(name))
    if named.endswith((".keras", ".h5")):
        return planned_step(_saved(named))
    if named.endswith(".py"):
        return planned_step(*from_script(named, arguments))
    raise UsageError(
        f"Cannot plan {named!r}: it must be a script (train.py), a saved model (model.keras), "
        "keras.applications:ResNet50 or keras_hub:PRESET."
    )


def _saved(path: str) -> Any:
    install_hooks()  # they note which variable each slot of a built optimizer is for
    importlib.import_module("replicax.layers")  # Keras finds classes that are registered
    try:
        return keras.models.load_model(path)
    except (OSError, TypeError, ValueError) as error:
        raise UsageError(f"Cannot plan {path!r}: {error}") from error


def _application(name: str) -> Any:
    """A model of `keras.applications` with random weights, compiled for 1000 classes."""
    make = getattr(keras.applications, name, None)
    if not callable(make):
        known = [one for one in dir(keras.applications) if one[0].isupper()]
        raise UsageError(
            f"`keras.applications` has no model {name!r}.{did_you_mean(name, known)} Its models "
            f"are {', '.join(known)}."
        )
    model: Any = make(weights=None)
    model.compile("adam", "sparse_categorical_crossentropy")
    return model


def _from_hub(preset: str) -> Any:
    """A model of KerasHub without its weights; KerasHub compiles it itself."""
    try:
        hub = importlib.import_module(HUB)
    except ImportError as error:
        raise UsageError(
            f"Cannot load the preset {preset!r}: {error}. Run `pip install keras-hub`."
        ) from error
    return hub.models.Task.from_preset(preset, load_weights=False)


class _Found(BaseException):
    """Ends the script where it would train; its own `except Exception` must not catch it."""


def from_script(path: str, arguments: Sequence[str] = ()) -> tuple[Any, Any]:
    """Run a script until it calls `fit` or `train_on_batch` of a model, which is not run.

    Returns the model, and the first batch that it would be trained with, without its values. The
    batch is None if the script ended without training, but has compiled a model.
    """
    compiled: list[Any] = []
    try:
        with contextlib.ExitStack() as stack:
            for name in ("fit", "train_on_batch"):  # stop at the first; `fit` makes its batches
                stack.enter_context(replaced(_compat.JAXTrainer, name, _stopping))
            stack.enter_context(replaced(_compat.Trainer, "compile", noting(compiled)))
            run_program(path, arguments)
    except _Found as found:
        model, batch = found.args
        return model, batch
    if not compiled:
        raise UsageError(
            f"Cannot plan {path!r}: it ended without compiling a model. Call `model.compile(…)` "
            "and `fit` in it; it is stopped at `fit`."
        )
    return compiled[-1], None


def _stopping(original: Callable[..., Any]) -> Callable[..., NoReturn]:
    signature = inspect.signature(original)

    def stopped(*args: Any, **kwargs: Any) -> NoReturn:
        given = signature.bind(*args, **kwargs).arguments
        raise _Found(given["self"], shapes_of(_first_batch(given, original.__name__)))

    return stopped


_OF_DATA = ("y", "sample_weight", "batch_size", "steps_per_epoch", "class_weight")


def _first_batch(given: dict[str, Any], method: str) -> Any:
    """The first batch of what `fit` was given, or all that `train_on_batch` was."""
    x = given.get("x")
    if method == "train_on_batch":
        parts = (x, given.get("y"), given.get("sample_weight"))
        return _without_last_nones(parts)
    options = {name: given[name] for name in _OF_DATA if given.get(name) is not None}
    adapter = _compat.data_adapters.get_data_adapter(x, **options)
    batch = next(iter(adapter.get_jax_iterator()))
    parts = batch if isinstance(batch, tuple | list) else (batch,)
    return _without_last_nones(parts)


def _without_last_nones(parts: Sequence[Any]) -> tuple[Any, ...]:
    """The arguments without trailing Nones; a None before others keeps its place."""
    count = max((i for i, part in enumerate(parts, 1) if part is not None), default=0)
    return tuple(parts[:count])
