"""Metrics at the end of an epoch, without programs that compute them.

Keras divides sums by counts there, eagerly: JAX compiles three programs for it, or loads them. Of
several workers on CPUs all but the first compile them at each start. The quotients are read right
afterwards, so NumPy may make them. They are the same to the bit, but for numbers below the least
normal one (1.2e-38), which XLA makes zero and NumPy does not.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import jax
import keras
import numpy as np

from replicax._core.host_calls import is_compiling
from replicax._keras import _compat

_are_read: ContextVar[bool] = ContextVar("replicax_metrics_are_read", default=False)


def install() -> None:
    """Put the seams into Keras; a second call changes nothing."""
    _compat.wrap(_compat.Trainer, _compat.EPOCH_LOGS, _read_at_once)
    _compat.wrap(_compat.jax_numpy, "divide_no_nan", _on_host)


def _read_at_once(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def logs_of_epoch(self: Any, logs: Any) -> Any:
        token = _are_read.set(True)
        try:
            return original(self, logs)
        finally:
            _are_read.reset(token)

    return logs_of_epoch


def _on_host(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def divide_no_nan(x1: Any, x2: Any) -> Any:
        if not _are_read.get():
            return original(x1, x2)
        values = [keras.ops.convert_to_tensor(x) for x in (x1, x2)]
        if is_compiling(*values) or not all(map(_is_here, values)):
            return original(*values)
        total, count = map(np.asarray, values)
        quotient = np.zeros_like(total)
        with np.errstate(all="ignore"):  # as XLA, which says nothing of infinity
            np.divide(total, count, out=quotient, where=count != 0)
        return jax.device_put(quotient)

    return divide_no_nan


def _is_here(value: Any) -> bool:
    """Whether a value is one number that this process can read."""
    is_number = value.shape == () and value.dtype == np.float32
    return is_number and (value.is_fully_addressable or value.is_fully_replicated)
