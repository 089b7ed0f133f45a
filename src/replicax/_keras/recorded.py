"""What a closure calls while it is recorded: methods of Keras that tell a `Recorder` instead."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from replicax._keras import _compat
from replicax._keras.recorder import recorder_of


def install() -> None:
    """Put those seams into Keras that only closures need; a second call changes nothing."""
    _compat.wrap(_compat.BaseOptimizer, "stateless_apply", recorded_stateless_apply)
    _compat.wrap(_compat.KerasVariable, "assign_add", functools.partial(recorded_add, sign=1))
    _compat.wrap(_compat.KerasVariable, "assign_sub", functools.partial(recorded_add, sign=-1))


def recorded_apply(original: Callable[..., Any]) -> Callable[..., Any]:
    """An optimizer's `apply` in a closure: the gradients leave, the optimizer is elsewhere."""

    @functools.wraps(original)
    def apply(self: Any, grads: Any, trainable_variables: Any = None) -> Any:
        recorder = recorder_of(_compat.get_stateless_scope())
        if recorder is None:
            return original(self, grads, trainable_variables)
        return recorder.apply(self, grads, trainable_variables)

    return apply


def recorded_stateless_apply(original: Callable[..., Any]) -> Callable[..., Any]:
    """The same for the stateless form: nothing changes here."""

    @functools.wraps(original)
    def stateless_apply(self: Any, optimizer_variables: Any, grads: Any, values: Any) -> Any:
        recorder = recorder_of(_compat.get_stateless_scope())
        if recorder is None:
            return original(self, optimizer_variables, grads, values)
        recorder.apply(self, grads, None)
        return values, optimizer_variables

    return stateless_apply


def recorded_add(original: Callable[..., Any], sign: int) -> Callable[..., Any]:
    """`assign_add` in a closure: what is added travels, so that no other addition is lost."""

    @functools.wraps(original)
    def add(self: Any, value: Any) -> Any:
        scope = _compat.get_stateless_scope()
        if scope is None:
            at_home = getattr(self, "add_at_home", None)
            return at_home(value, sign) if at_home else original(self, value)
        recorder = recorder_of(scope)
        if recorder is None:
            return original(self, value)
        before = _compat.unheard(scope, self)
        after = original(self, value)
        recorder.add(self, value if sign > 0 else -jnp.asarray(value), before, after)
        return after

    return add
