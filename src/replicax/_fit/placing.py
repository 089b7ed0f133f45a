"""The batches and the state of Keras' loops, where a strategy wants them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from replicax._control.agreement import agree
from replicax._fit.data import HostAdapter
from replicax._keras import _compat
from replicax._keras.distribution import StoreDistribution
from replicax._keras.workers import share_random_state


def placed_batches(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def batches(self: Any, distribution: Any) -> Any:
        if not isinstance(distribution, StoreDistribution):
            return original(self, distribution)
        adapter = self.data_adapter
        owned = isinstance(adapter, HostAdapter)
        if distribution.make_steps is not None:
            return adapter.get_numpy_iterator()  # closures take copies
        # Of a batch ahead, workers know that they agree before they need it.
        several = distribution.topology.num_processes > 1
        ahead = 1 if several or distribution.topology.platform != "cpu" else 0
        if several and _compat.reads_arrays(adapter):
            return _of_arrays(adapter, distribution)
        if several:
            _meet(adapter)
        return distribution.place(adapter.get_jax_iterator(), ahead=ahead, owned=owned)

    return batches


def _of_arrays(adapter: Any, distribution: StoreDistribution) -> Iterator[Any]:
    """A pass over arrays of several workers; its order is drawn when it begins, if ever it does.

    Keras makes one more at the end of the last epoch.
    """
    _meet(adapter)
    yield from distribution.place(adapter.get_jax_iterator(), ahead=1)


def _meet(adapter: Any) -> None:
    """Begin a pass on all workers."""
    agree("data", {"number of batches": str(adapter.num_batches)})
    if not isinstance(adapter, HostAdapter):
        share_random_state()  # from which Keras draws the order of arrays


def placed_batch(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def placed(data: Any, layouts: Any = None) -> Any:
        current = _compat.distribution()
        if not isinstance(current, StoreDistribution):
            return original(data, layouts)
        if current.make_steps is not None:
            return data
        return next(current.place([data], ahead=0))

    return placed


def state_elsewhere(original: Callable[..., Any]) -> Callable[..., Any]:
    """The values of all variables for a loop: none, as its steps read and write variables."""

    @functools.wraps(original)
    def state(self: Any, **wanted: bool) -> Any:
        if _compat.strategy_of(self) is None:
            return original(self, **wanted)
        return tuple(None for name, wish in wanted.items() if wish and name != _compat.PURGES)

    return state
