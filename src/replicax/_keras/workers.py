"""Patches of Keras for several workers: all start from the chief's variables and random state."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from replicax._core.channel import Channel, current
from replicax._core.placement import place
from replicax._keras import _compat
from replicax._keras.distribution import chief_value


def install() -> None:
    _compat.patch(_compat.jax_distribution, "distribute_tensor", _placed)
    _compat.patch(_compat.JaxVariable, "_initialize", from_chief)


def _placed(original: Callable[..., Any], tensor: Any, layout: Any) -> Any:
    ours = isinstance(layout, jax.sharding.Sharding) and not layout.is_fully_addressable
    return place(tensor, layout) if ours else original(tensor, layout)


def from_chief(original: Callable[..., Any], self: Any, *args: Any, **kwargs: Any) -> None:
    """Initialize a variable; with several workers, with the value that the chief has."""
    outermost = not getattr(self, "_replicax_initializing", False)
    self._replicax_initializing = True
    try:
        original(self, *args, **kwargs)
    finally:
        if outermost:
            del self._replicax_initializing
    layout, value = _compat.layout(self), _compat.stored(self)
    if outermost and current().size > 1 and _compat.owner(self) is not None:
        _compat.store(self, place(chief_value(value, layout, self.path), layout))


def channel_of(model: Any) -> Channel:
    """The channel between the workers that train a model; of one worker for a local strategy."""
    strategy = _compat.strategy_of(model)
    if strategy is None or strategy.extended.distribution.topology.num_processes == 1:
        return Channel()
    return current()


def share_random_state() -> None:
    """Give the global generators of NumPy and Python the chief's state on all workers."""
    channel = current()
    if channel.size == 1:
        return
    kind, keys, *rest = np.random.get_state()
    version, internal, gauss = random.getstate()
    mine = [[kind, np.asarray(keys).tolist(), *rest], [version, list(internal), gauss]]
    (kind, keys, *rest), (version, internal, gauss) = channel.exchange(
        "random state", mine if channel.is_chief else None
    )[0]
    if not channel.is_chief:
        np.random.set_state((kind, np.asarray(keys, np.uint32), *rest))
        random.setstate((version, tuple(internal), gauss))
