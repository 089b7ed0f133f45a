"""The batches and the state of Keras' loops, where a strategy wants them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

from replicax._control.agreement import agree
from replicax._core.interrupts import uninterrupted
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


def kept_untracked(original: Callable[..., Any]) -> Callable[..., Any]:
    """Setting an attribute of a model: of what its loop holds, Keras is to track nothing."""

    @functools.wraps(original)
    def setattr(self: Any, name: str, value: Any) -> None:
        if not _compat.keep_loop_state(self, name, value):
            super(_compat.JAXTrainer, self).__setattr__(name, value)

    return setattr


def state_elsewhere(original: Callable[..., Any]) -> Callable[..., Any]:
    """The values of all variables for a loop: none, if its steps read and write variables.

    The loop holds them before Keras empties the variables, so that they are lost at no moment.
    """

    @functools.wraps(original)
    def state(self: Any, **wanted: bool) -> Any:
        owner = _compat.strategy_of(self)
        where = owner and owner.extended.distribution
        if where is None:
            return original(self, **wanted)
        groups = [name for name, wish in wanted.items() if wish and name != _compat.PURGES]
        if where.make_steps or where.in_replica_view:
            return tuple([] for _ in groups)
        with uninterrupted:
            values = original(self, **wanted)
            _compat.hold_loop_state(self, groups, values)
        return values

    return state


def written_whole(original: Callable[..., Any]) -> Callable[..., Any]:
    """Giving variables what a loop holds: all of them, or none."""

    @functools.wraps(original)
    def sync(self: Any) -> None:
        if _compat.strategy_of(self) is None:
            return original(self)
        with uninterrupted:
            return original(self)

    return sync
