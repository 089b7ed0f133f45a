"""Keras' Adam on CPUs: one fused operation updates many variables in place."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import keras

from replicax._core.packing import groups
from replicax._core.topology import default_device
from replicax._cpu import kernels
from replicax._cpu.adam import Settings, adam
from replicax._cpu.tuning import is_on
from replicax._keras import _compat
from replicax._program.compiling import platform_of

_LEAST = 4096  # elements; for fewer a kernel does not pay
# Elements per operation: it waits for all its gradients, which hold memory until then.
_TOGETHER = 1 << 24


class _Update(NamedTuple):
    """A variable, its slot variables, and its gradient."""

    variable: Any
    momentum: Any
    velocity: Any
    gradient: Any


def install() -> None:
    _compat.patch(keras.optimizers.Adam, _compat.UPDATES, _fused)


def _fused(
    original: Callable[..., Any],
    self: Any,
    grads: Sequence[Any],
    variables: Sequence[Any],
    rate: Any,
) -> Any:
    if not _is_plain_adam(self) or not _has_kernel(variables):
        return original(self, grads, variables, rate)
    updates = [
        _Update(variable, *_compat.slots_of_adam(self, variable), grad)
        for grad, variable in zip(grads, variables, strict=True)
    ]
    if not all(map(_can_fuse, updates)):
        return original(self, grads, variables, rate)
    corrected = _corrected(self, rate)
    for group in groups(updates, lambda update: _size(update.variable), _TOGETHER):
        _update(self, group, corrected)
    return None


def _is_plain_adam(optimizer: Any) -> bool:
    """Whether an optimizer is Keras' Adam without options that need a variable's old value.

    Gradient accumulation selects between old and new values. Weight decay would be one more pass
    over the weights here; XLA fuses it with the update.
    """
    numbers = (optimizer.beta_1, optimizer.beta_2, optimizer.epsilon)
    return (
        type(optimizer).update_step is keras.optimizers.Adam.update_step
        and not optimizer.amsgrad
        and not optimizer.gradient_accumulation_steps
        and optimizer.weight_decay is None
        and all(isinstance(number, float | int) for number in numbers)
    )


def _can_fuse(update: _Update) -> bool:
    """Whether all arrays are replicated, `float32` and of one shape.

    Keras reports shapes that differ. XLA updates only the shard of a sharded variable.
    """
    held = (update.variable, update.momentum, update.velocity)
    alike = all(tuple(one.shape) == tuple(update.variable.shape) for one in update)
    return alike and all(one.dtype == "float32" and _is_whole(one) for one in held)


def _is_whole(variable: Any) -> bool:
    layout = _compat.layout(variable)
    # Layouts of Keras' own distributions do not have this attribute.
    return layout is None or getattr(layout, "is_fully_replicated", False)


def _has_kernel(variables: Sequence[Any]) -> bool:
    """Whether variables are on CPUs, large enough for a kernel, and kernels are installed."""
    enough = sum(map(_size, variables)) >= _LEAST
    return enough and is_on("optimizers") and _platform(variables) == "cpu" and kernels.are_there()


def _platform(variables: Sequence[Any]) -> str:
    layouts = filter(None, map(_compat.layout, variables))
    devices = next((getattr(layout, "device_set", None) for layout in layouts), None)
    return platform_of(devices or (default_device(),))


def _size(variable: Any) -> int:
    return math.prod(variable.shape)


def _update(optimizer: Any, group: Sequence[_Update], rate: Any) -> None:
    variables, momenta, velocities, grads = zip(*group, strict=True)
    held = [*variables, *momenta, *velocities]
    settings = Settings(
        optimizer.beta_1,
        optimizer.beta_2,
        optimizer.epsilon,
        replicated=all(_compat.layout(variable) is not None for variable in held),
    )
    gradients = [keras.ops.cast(grad, "float32") for grad in grads]
    news = adam(_compat.read_all(held), gradients, rate, settings)
    for variable, new in zip(held, news, strict=True):
        optimizer.assign(variable, new)


def _corrected(optimizer: Any, rate: Any) -> Any:
    """The learning rate with Adam's bias correction for this step."""
    step: Any = keras.ops.cast(optimizer.iterations + 1, "float32")
    rate = keras.ops.cast(rate, "float32")
    first, second = (
        jnp.power(jnp.float32(beta), step) for beta in (optimizer.beta_1, optimizer.beta_2)
    )
    return rate * jnp.sqrt(1 - second) / (1 - first)
