"""What Keras leaves to cuDNN, only in programs for GPUs: LSTM, and attention in 16 bits.

Keras asks JAX for the platform of the process, and a strategy may compute on another one: on the
CPU of a machine with GPUs, or on workers elsewhere.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from replicax._core.context import current_frame
from replicax._keras import _compat
from replicax._keras.distribution import StoreDistribution


def install() -> None:
    """Put the seams into Keras' backend; a second call changes nothing."""
    if hasattr(_compat.jax_rnn, _compat.LSTM_ON_GPU):  # Keras before 3.15 has no LSTM by cuDNN
        _compat.wrap(_compat.jax_rnn, _compat.LSTM_ON_GPU, _where_the_strategy_is)
    _compat.wrap(_compat.jax_nn, _compat.ATTENTION_BY_CUDNN, _unless_on_a_cpu)


def _where_the_strategy_is(original: Callable[[], bool]) -> Callable[[], bool]:
    @functools.wraps(original)
    def is_gpu_available() -> bool:
        platform = _platform()
        return original() if platform is None else platform == "gpu"

    return is_gpu_available


def _unless_on_a_cpu(original: Callable[..., bool]) -> Callable[..., bool]:
    @functools.wraps(original)
    def can_use(*arrays: Any, raise_error: bool = False) -> bool:
        if not raise_error and _platform() == "cpu":
            return False
        return original(*arrays, raise_error=raise_error)

    return can_use


def _platform() -> str | None:
    """The platform that the current strategy computes on; None without one.

    What closures of parameter servers compute on is known when they are sent: they go to CPUs, too.
    """
    distribution = _distribution()
    if distribution is None:
        return None
    return "cpu" if distribution.engine.closures is not None else distribution.topology.platform


def _distribution() -> StoreDistribution | None:
    """The distribution of `fit`, or of the strategy that is current in `run` and in its scope."""
    found = _compat.distribution()
    if not isinstance(found, StoreDistribution) and (frame := current_frame()) is not None:
        found = getattr(frame.strategy.extended, "distribution", None)
    return found if isinstance(found, StoreDistribution) else None
