"""A model's step as a function of a batch, which reads and writes the model's variables."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import keras

from replicax._core import seams
from replicax._fit.step_program import model_step, step_variables
from replicax._keras import _compat
from replicax._keras.gradients import value_and_grad


def own_step(model: Any, kind: str) -> Callable[[Any], Any]:
    """The model's own step, or the one that Keras has for it."""
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
        groups = step_variables(model, kind)
        state = tuple(map(_compat.read_all, groups))
        result, news = model_step(model, kind, state, batch)
        for variables, before, after in zip(groups, state, news, strict=True):
            for variable, old, value in zip(variables, before, after, strict=True):
                if value is not old:
                    _compat.write(variable, keras.ops.cast(value, variable.dtype))
        return result

    return step
