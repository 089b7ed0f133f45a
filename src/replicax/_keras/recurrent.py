"""Keras' LSTM by cuDNN, only in programs for GPUs.

Keras asks JAX for the platform of the process, and a strategy may compute on another one: on the
CPU of a machine with GPUs, or on workers elsewhere.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from replicax._core.context import current_frame
from replicax._keras import _compat
from replicax._keras.distribution import StoreDistribution

_ASKS = "_is_gpu_available"  # Keras 3.15 has it


def install() -> None:
    """Put the seam into Keras' backend; a second call changes nothing."""
    if hasattr(_compat.jax_rnn, _ASKS):
        _compat.wrap(_compat.jax_rnn, _ASKS, _of_the_strategy)


def _of_the_strategy(original: Callable[[], bool]) -> Callable[[], bool]:
    @functools.wraps(original)
    def is_gpu_available() -> bool:
        distribution = _distribution()
        if distribution is None:
            return original()
        # What closures of parameter servers compute on is known when they are sent.
        is_here = distribution.engine.closures is None
        return is_here and distribution.topology.platform == "gpu"

    return is_gpu_available


def _distribution() -> StoreDistribution | None:
    """The distribution of `fit`, or of the strategy that is current in `run` and in its scope."""
    current, frame = _compat.distribution(), current_frame()
    if isinstance(current, StoreDistribution) or frame is None:
        return current if isinstance(current, StoreDistribution) else None
    found = getattr(frame.strategy.extended, "distribution", None)
    return found if isinstance(found, StoreDistribution) else None
