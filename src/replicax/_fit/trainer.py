"""Patches of Keras' `fit`, `evaluate` and `predict` for models made in a scope.

Keras' own loops run, with the strategy's `StoreDistribution` as the current distribution, and with
the step functions of steps.py or replica_steps.py.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Callable
from typing import Any

import jax
import keras

from replicax._core import seams
from replicax._core.channel import current
from replicax._core.context import current_frame
from replicax._core.errors import MixedStrategies
from replicax._core.seams import put_in_if_keras_is_there
from replicax._fit import callback_list
from replicax._fit.batches import no_loop_state, placed_batch, placed_batches
from replicax._fit.data import (
    adapted,
    ended_look,
    noted_look,
    refuse_endless_validation,
    unannounced_end,
)
from replicax._fit.replica_steps import ReplicaSteps, step_functions_of, steps_of
from replicax._fit.steps import Steps
from replicax._keras import (
    _compat,
    adam,
    distribution,
    initial_values,
    operations,
    replica,
    workers,
)
from replicax._keras.distribution import StoreDistribution, adopt, mark_slots, with_distribution
from replicax._program.explain import raise_explained

_log = logging.getLogger("replicax")
# Keras does not compile models with these layers, because TensorFlow's XLA cannot transform images.
# JAX compiles them, but not `RandomCrop`, which slices at indices that depend on values.
_COMPILED_BY_JAX = (
    *(keras.layers.RandomPerspective, keras.layers.RandomRotation, keras.layers.RandomShear),
    *(keras.layers.RandomTranslation, keras.layers.RandomZoom),
)


def install_hooks() -> None:
    """Install all patches of Keras, once."""
    replica.install()
    install()
    distribution.install()
    callback_list.install()
    adam.install()
    operations.install()
    initial_values.install()
    if jax.distributed.is_initialized() or current().size > 1:
        workers.install()
    put_in_if_keras_is_there()  # those of `replicax.tf`, if the program has imported it


def install() -> None:
    trainer = _compat.JAXTrainer
    _compat.patch(trainer, "__init__", _bound_to_scope)
    # On the base class: Keras takes a `compile` of any subclass for the user's own.
    _compat.patch(_compat.Trainer, "compile", _checked_compile)
    _compat.patch(trainer, "fit", _fit)
    for method in ("evaluate", "predict", *_compat.ON_BATCH):
        _compat.patch(trainer, method, _in_own_distribution)
    for kind in ("train", "test", "predict"):
        _compat.patch(trainer, f"make_{kind}_function", functools.partial(_own_function, kind=kind))
    _compat.patch(_compat.JAXEpochIterator, _compat.BATCH_ITERATOR, placed_batches)
    _compat.patch(_compat.jax_trainer, _compat.BATCH_PLACER, placed_batch)
    _compat.patch(trainer, _compat.LOOP_STATE, no_loop_state)
    # Not on `fit`: in `model.fit(Dataset(…))` Python looks `fit` up before there is a data set.
    _compat.patch(_compat.data_adapters, "get_data_adapter", adapted)
    _compat.patch(_compat.Trainer, _compat.DATA_LOOK, noted_look)
    _compat.patch(_compat.EpochIterator, "reset", ended_look)
    _compat.patch(_compat.EpochIterator, "catch_stop_iteration", unannounced_end)


def _bound_to_scope(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> None:
    frame = current_frame()
    if frame is not None and _compat.is_session_cleared(frame.session):  # as KerasTuner does
        _compat.set_distribution(frame.strategy.extended.distribution)
    original(self, *args, **kwargs)
    if frame is not None and isinstance(_compat.distribution(), StoreDistribution):
        _compat.bind_strategy(self, frame.strategy)


def _checked_compile(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    frame, owner = current_frame(), _compat.strategy_of(self)
    in_scope = isinstance(_compat.distribution(), StoreDistribution)
    if frame is not None and in_scope and frame.strategy is not owner:
        whose = "no strategy" if owner is None else repr(owner)
        raise MixedStrategies(
            f"Cannot compile a model of {whose} in the scope of {frame.strategy!r}. Make the "
            "model inside the same `with strategy.scope():` block."
        )
    if owner is None:
        return original(self, *args, **kwargs)
    _allow_jit(self)
    if owner.extended.distribution is _compat.distribution():
        return original(self, *args, **kwargs)
    with with_distribution(owner.extended.distribution):
        return original(self, *args, **kwargs)


def _allow_jit(model: Any) -> set[str]:
    """Allow Keras to compile layers that JAX can compile; returns the names of the others."""
    uncompiled = {layer for layer in _compat.layers_in(model) if not layer.supports_jit}
    for layer in uncompiled:
        layer.supports_jit = type(layer) in _COMPILED_BY_JAX
    return {type(layer).__name__ for layer in uncompiled if not layer.supports_jit}


def _in_own_distribution(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    owner, current = _compat.strategy_of(self), _compat.distribution()
    if owner is None and not isinstance(current, StoreDistribution):
        try:
            return original(self, *args, **kwargs)
        except Exception as error:
            if seams.speaks_tensorflow:
                raise_explained(error)
            raise
    if owner is None:
        with with_distribution(None):
            return original(self, *args, **kwargs)
    with owner.scope():
        if owner.extended.distribution.engine.closures is not None:
            refuse_endless_validation(kwargs)
        try:
            return original(self, *args, **kwargs)
        except BaseException as error:
            for steps in steps_of(self):
                steps.abandon()
            if isinstance(error, Exception):
                raise_explained(error)
            raise
        finally:
            for steps in steps_of(self):
                steps.forget()


def _fit(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    """`fit`; the hooks of its end are called also if it fails, unlike Keras' callbacks."""
    try:
        with_local_steps = functools.partial(_with_local_steps, original)
        return _in_own_distribution(with_local_steps, self, *args, **kwargs)
    finally:
        _compat.end_of_fit(self)


def _with_local_steps(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> Any:
    """Let the loop take all steps up to the next average at once, if replicas train alone."""
    owner = _compat.strategy_of(self)
    placed = keras.distribution.distribution()  # a program's own `keras.distribution`
    if owner is placed is None and not seams.speaks_tensorflow:
        _warn_outside_scope(self.name)
    local = owner and owner.extended.distribution.engine.local_steps
    with local.several_at_once(self) if local else contextlib.nullcontext():
        history = original(self, *args, **kwargs)
    for steps in step_functions_of(self):
        steps.end_fit()
    return history


_warned_outside_scope = threading.Event()


def _warn_outside_scope(name: str) -> None:
    """Warn, once per process, about a model made outside a scope."""
    if not _warned_outside_scope.is_set():
        _warned_outside_scope.set()
        _log.warning(
            "The model '%s' was made outside every `strategy.scope()`: Keras trains it on one "
            "device, without Replicax. Make and compile it inside one, or ignore this line.",
            name,
        )


def _own_function(
    original: Callable[..., Any], self: Any, force: bool = False, *, kind: str
) -> Any:
    attribute = f"{kind}_function"
    owner = _compat.strategy_of(self)
    if owner is None:
        return original(self, force)
    current = getattr(self, attribute)
    distribution = owner.extended.distribution
    # Each time: a layer may have got new variables since (`enable_lora`).
    engine = distribution.engine
    adopt(distribution.store, _variables(self, of_optimizer=engine.closures is None))
    if current is None or force:
        uncompiled = _allow_jit(self)
        is_slow = not (self.jit_compile or self.run_eagerly) and owner.num_replicas_in_sync > 1
        if uncompiled and is_slow and kind == "train":
            _log.warning(
                "Keras does not compile this model because of %s, so each device computes the "
                "whole batch, operation by operation. Move that into the data pipeline. See "
                "docs/fit.md.",
                ", ".join(sorted(uncompiled)),
            )
        if engine.closures is not None:
            current = engine.closures.make_steps(self, kind)
        else:
            kinds = ReplicaSteps if engine.in_replica_view else Steps
            current = kinds(self, kind, distribution)
        setattr(self, attribute, current)
    return current


def _variables(model: Any, *, of_optimizer: bool) -> list[Any]:
    """The variables for a store to adopt; servers move slot variables by themselves."""
    optimizer = getattr(model, "optimizer", None) if of_optimizer else None
    return [
        *model.variables,
        *model.metrics_variables,
        *(mark_slots(optimizer.variables) if optimizer else ()),
    ]
