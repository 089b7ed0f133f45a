"""Methods of Keras that a recorded closure calls, which tell a `Recorder` instead of acting.

An optimizer's `apply`, and all of a `LossScaleOptimizer`, are in `_keras/replica.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from replicax._keras import _compat
from replicax._program.capture import current_recorder


def install() -> None:
    """Put the seams into Keras; a second call changes nothing."""
    _compat.wrap(_compat.BaseOptimizer, "stateless_apply", _recorded_stateless_apply)
    _compat.wrap(_compat.KerasVariable, "assign_add", functools.partial(_recorded_add, sign=1))
    _compat.wrap(_compat.KerasVariable, "assign_sub", functools.partial(_recorded_add, sign=-1))


def _recorded_stateless_apply(original: Callable[..., Any]) -> Callable[..., Any]:
    """Record the gradients; nothing changes here."""

    @functools.wraps(original)
    def stateless_apply(self: Any, optimizer_variables: Any, grads: Any, values: Any) -> Any:
        recorder = current_recorder()
        if recorder is None:
            return original(self, optimizer_variables, grads, values)
        recorder.apply(self, grads, None)
        return values, optimizer_variables

    return stateless_apply


def _recorded_add(original: Callable[..., Any], sign: int) -> Callable[..., Any]:
    """Record the sum and not the new value, so that no other addition is lost."""

    @functools.wraps(original)
    def add(self: Any, value: Any) -> Any:
        scope = _compat.get_stateless_scope()
        if scope is None:
            at_home = getattr(self, "add_at_home", None)
            return at_home(value, sign) if at_home else original(self, value)
        recorder = current_recorder()
        if recorder is None:
            return original(self, value)
        before = _compat.unheard(scope, self)
        after = original(self, value)
        recorder.add(self, value if sign > 0 else -jnp.asarray(value), before, after)
        return after

    return add
